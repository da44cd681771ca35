import FoundationEssentials
import Glibc
import StoreContract

/// Simulates power failures: an image has everything that was synced, and a random part of the blocks written since.
///
/// A worker runs once under the recorder. Each image is the disk at a random event of that run; every fourth while a
/// body arrives, and every fourth right after a flush that followed the end of one. The checker must be able to open
/// the image, must find only correct bytes, and must find every response that was durable at that event.
struct PowerLossSeries {
  static let keyCount = 256
  let setting: RunConfiguration
  let directory: String

  enum Kind: String, CaseIterable {
    case roomy, evicting
    var capacity: Int { self == .roomy ? 64 << 20 : 2 << 20 }
  }

  func run(imageCount: Int) -> Bool {
    var isGood = true
    let started = now()
    var recreatedCount = 0
    var found = 0
    var eventCount = 0
    for kind in Kind.allCases {
      guard let recording = record(kind) else { return false }
      eventCount += recording.events.count
      let outcome = check(recording, kind: kind, imageCount: imageCount / 2)
      isGood = isGood && outcome.isGood
      recreatedCount += outcome.recreatedCount
      found += outcome.found
    }
    isGood = isGood && found > 0
    setting.report(
      "powerloss",
      "\(imageCount / 2 * 2) simulated power failures (seed \(setting.seed)) in \(eventCount) recorded events, "
        + "\(found) responses compared, \(recreatedCount) stores recreated empty, "
        + "\(Int(now() - started)) s: \(isGood ? "OK" : "FAILED")")
    return isGood
  }

  private func record(_ kind: Kind) -> Recording? {
    makeDirectory(directory)
    Ledger(path: directory + "/ledger", keyCount: Self.keyCount).isEvicting = kind == .evicting
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
  ) -> (isGood: Bool, recreatedCount: Int, found: Int) {
    var random = SeededRandom(setting.seed &+ UInt64(kind.capacity))
    let safeAfter = recording.safeAfter()
    // In ascending order, so that the images share the events that are durable at an earlier cut.
    let moments = Moments(recording)
    let cuts = (0..<imageCount).map { number in
      switch number % 4 {
      case 0: moments.arriving.randomElement(using: &random)?.randomElement(using: &random)
      case 1: moments.flushed.randomElement(using: &random).map { min($0 + random.below(20), recording.events.count) }
      default: random.below(recording.events.count + 1)
      }
    }.compactMap { $0 }.sorted()
    guard cuts.count == imageCount else {
      say("powerloss \(kind.rawValue): no body arrived in pieces")
      return (false, 0, 0)
    }
    var isGood = true
    var recreatedCount = 0
    var found = 0
    // The disk after all events before the first one that is not durable at the current cut. Later images include it.
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
        if case .note(let word, let value) = recording.events[noted].kind {
          // Threads may have recorded their positions in another order than they took them.
          words[word] = word == Ledger.positionIndex ? max(value, words[word] ?? 0) : value
        }
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
      if output.contains("starts empty") { recreatedCount += 1 }
      if let entries = output.split(separator: "\n").first(where: { $0.hasPrefix("entries ") }) {
        found += Int(entries.dropFirst(8)) ?? 0
      }
      if end != .exited(0) {
        isGood = false
        say(
          "powerloss \(kind.rawValue) image \(number): cut at event \(cut), the first \(applied) durable, "
            + "share \(share), seed \(seed): checker \(end)\n\(output)")
        if setting.isVerbose { exit(1) }
      }
    }
    return (isGood, recreatedCount, found)
  }

  /// The moments of a recording that concern bodies that arrive in pieces.
  private struct Moments {
    /// Events while a body is on disk and not complete.
    var arriving: [Range<Int>] = []
    /// Events after a flush that followed the end of a body.
    var flushed: [Int] = []

    init(_ recording: Recording) {
      let words = (0..<Worker.hostCount).map { Ledger.index(ofWord: Worker.arrivingWord(host: $0)) }
      var starts: [Int: Int] = [:]
      for (index, event) in recording.events.enumerated() {
        guard case .note(let word, let value) = event.kind else { continue }
        if word == Ledger.index(ofWord: Worker.flushedBodyWord) { flushed.append(index + 1) }
        guard words.contains(word) else { continue }
        if value != 0 {
          starts[word] = starts[word] ?? index + 1
        } else if let start = starts.removeValue(forKey: word) {
          arriving.append(start..<index + 1)
        }
      }
    }
  }

  private func checkOne(_ images: DiskImages, words: [Int: UInt64], kind: Kind) -> (Child.End, String) {
    let store = directory + "/image"
    makeDirectory(store)
    makeDirectory(store + "/data-1")
    // The store creates and syncs this file before any data.
    DiskImage().write(to: store + "/LMDBURLCache.store")
    images.write(to: store + "/data-1")
    let ledgerPath = directory + "/image-ledger"
    unlink(ledgerPath)
    let ledger = Ledger(path: ledgerPath, keyCount: Self.keyCount)
    for (word, value) in words { ledger.set(word, value) }
    ledger.isEvicting = kind == .evicting
    return Child.run(
      ["check", store, ledgerPath, "\(Self.keyCount)", "\(kind.capacity)"],
      outputPath: directory + "/checker.log")
  }
}
