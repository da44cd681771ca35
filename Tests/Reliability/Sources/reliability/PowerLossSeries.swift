import FoundationEssentials
import Glibc

/// The disk as a power cut leaves it: all that was synced, and of what was written since each block or not.
///
/// A worker runs once under the recorder. Each image ends at a random moment of that run; the checker must be able to open
/// it, to find nothing but right bytes, and to find what was promised up to that moment.
struct PowerLossSeries {
  static let keyCount = 256
  let setting: Setting
  let directory: String

  enum Kind: String, CaseIterable {
    case roomy, evicting
    var capacity: Int { self == .roomy ? 64 << 20 : 2 << 20 }
  }

  func run(imageCount: Int) -> Bool {
    var isGood = true
    let started = now()
    var setAside = 0
    var found = 0
    var eventCount = 0
    for kind in Kind.allCases {
      guard let recording = record(kind) else { return false }
      eventCount += recording.events.count
      let outcome = check(recording, kind: kind, imageCount: imageCount / 2)
      isGood = isGood && outcome.isGood
      setAside += outcome.setAside
      found += outcome.found
    }
    setting.report(
      "powerloss",
      "\(imageCount / 2 * 2) images (seed \(setting.seed)) of \(eventCount) recorded events, "
        + "\(found) responses compared in them, \(setAside) opened as an empty store, "
        + "\(Int(now() - started)) s: \(isGood ? "all well" : "FAILED")")
    return isGood
  }

  private func record(_ kind: Kind) -> Recording? {
    makeDirectory(directory)
    let ledger = Ledger(path: directory + "/ledger", keyCount: Self.keyCount)
    ledger.isEvicting = kind == .evicting
    let operationCount = setting.isQuick ? 700 : 2500
    let (end, output) = Child.run(
      [
        "work", directory + "/store", directory + "/ledger", "\(Self.keyCount)", "\(kind.capacity)",
        "\(setting.seed)", "\(operationCount)",
      ], outputPath: directory + "/worker.log",
      environment: ["LD_PRELOAD": setting.recorder, "RECORDER_TRACE": directory + "/trace"])
    guard end == .exited(0) else {
      say("powerloss: the worker \(end)\n\(output)")
      return nil
    }
    return Recording(path: directory + "/trace")
  }

  private func check(
    _ recording: Recording, kind: Kind, imageCount: Int
  ) -> (isGood: Bool, setAside: Int, found: Int) {
    var random = SeededRandom(setting.seed &+ UInt64(kind.capacity))
    let safeAfter = recording.safeAfter()
    // Few of them at the very beginning, where there is nothing to lose.
    let cuts = (0..<imageCount).map { _ in random.below(recording.events.count + 1) }.sorted()
    var isGood = true
    var setAside = 0
    var found = 0
    // All events up to the first that was not safe at the last cut: they are in all images to come.
    var safeImages = DiskImages()
    var applied = 0
    var words: [Int: UInt64] = [:]
    var noted = 0
    for (number, cut) in cuts.enumerated() {
      while applied < cut, safeAfter[applied] <= cut || recording.events[applied].kind.changesNothing {
        safeImages.apply(recording.events[applied], of: recording) { true }
        applied += 1
      }
      while noted < cut {
        if case .note(let word, let value) = recording.events[noted].kind { words[word] = value }
        noted += 1
      }
      let seed = random.next() >> 16
      var dice = SeededRandom(seed)
      let share = Double(dice.below(5)) / 4
      var images = safeImages
      for index in applied..<cut {
        let isSafe = safeAfter[index] <= cut
        images.apply(recording.events[index], of: recording) { isSafe || dice.isBelow(share) }
      }
      let (end, output) = checkOne(images, words: words, kind: kind)
      if output.contains("set aside") { setAside += 1 }
      if let entries = output.split(separator: "\n").first(where: { $0.hasPrefix("entries ") }) {
        found += Int(entries.dropFirst(8)) ?? 0
      }
      if end != .exited(0) {
        isGood = false
        say(
          "powerloss \(kind.rawValue) image \(number): cut at event \(cut), \(applied) of them safe, "
            + "share \(share), seed \(seed): checker \(end)\n\(output)")
        if setting.isVerbose { exit(1) }
      }
    }
    return (isGood, setAside, found)
  }

  private func checkOne(_ images: DiskImages, words: [Int: UInt64], kind: Kind) -> (Child.End, String) {
    let store = directory + "/image"
    makeDirectory(store)
    // Made and synced before there is any data.
    DiskImage().write(to: store + "/LMDBURLCache.store")
    images.write(to: store)
    let ledgerPath = directory + "/image-ledger"
    unlink(ledgerPath)
    let ledger = Ledger(path: ledgerPath, keyCount: Self.keyCount)
    for (word, value) in words { ledger.set(word, value) }
    ledger.isEvicting = kind == .evicting
    ledger.set(0, (0..<Self.keyCount).map { ledger[.started, $0] }.max() ?? 0)
    return Child.run(
      ["check", store, ledgerPath, "\(Self.keyCount)", "\(kind.capacity)"], outputPath: directory + "/checker.log")
  }
}
