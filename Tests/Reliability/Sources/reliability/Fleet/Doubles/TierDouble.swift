import CacheActivity
import CacheModel
import CachingClient
import Glibc
import RedisTier
import StoreContract
import Synchronization

/// The tier of a machine, if a rule is broken in how its cache and the fleet work together.
struct TierDouble: JoinableFleetTier {
  let tier: RedisTier
  let rule: FleetRule

  func join(directory: String, node: FleetNode) throws -> any FleetMembership {
    let node = MembershipDouble.altered(node, breaking: rule, directory: directory)
    return MembershipDouble(try tier.join(directory: directory, node: node), breaking: rule, directory: directory)
  }
}

/// The membership of a machine, if a rule is broken there. It passes everything else on.
private final class MembershipDouble: FleetMembership {
  private let membership: any FleetMembership
  private let rule: FleetRule
  let lease: MachineLease

  init(_ membership: any FleetMembership, breaking rule: FleetRule, directory: String) {
    self.membership = membership
    self.rule = rule
    lease =
      switch rule {
      case .leaseChecked, .leaseBeforeLookup: .endless
      case .leaseFromSending, .leaseEndsBeforeLeaving: .copied(inDirectory: directory, breaking: rule)
      default: membership.lease
      }
  }

  var sharedResponses: (any TransportLayer)? { membership.sharedResponses }

  func purge(_ removal: Removal, timeout: Duration?, _ removeHere: () -> Void) throws -> FleetPurgeResult {
    guard rule == .waitHasMargin else { return try membership.purge(removal, timeout: timeout, removeHere) }
    do {
      return try membership.purge(removal, timeout: .seconds(FleetMachine.lease), removeHere)
    } catch let error as RedisTierError where error.code == .unconfirmed {
      return FleetPurgeResult(confirmedCount: 0, expiredLeaseCount: 0)
    }
  }

  func post(_ removals: [Removal], _ removeHere: () -> Void) { membership.post(removals, removeHere) }

  func leave() { membership.leave() }

  // MARK: The part of the cache that the fleet uses

  static func altered(_ node: FleetNode, breaking rule: FleetRule, directory: String) -> FleetNode {
    var altered = node
    switch rule {
    case .removedBeforeAcknowledged, .removedBeforePosition:
      let late = LateRemovals()
      altered.remove = { late.run($0, on: node) }
      // The next renewal acknowledges, after this.
      if rule == .removedBeforePosition {
        altered.storeID = {
          late.wait()
          return node.storeID()
        }
      }
    case .missedPurgesCoverAll:
      altered.remove = { isDistrust($0) || node.remove($0) }
    case .epochAppliedFromStart:
      // A lease that was valid was revoked just now.
      altered.remove = { removals in
        let hadLease = FleetMachineState.read(directory: directory)?.secondsCutOff.map { $0 < 0.05 } ?? false
        return isDistrust(removals) && hadLease || node.remove(removals)
      }
    case .purgesAnnounced:
      altered.remove = { removals in
        FleetFileLayout.copyWord(
          at: FleetFileLayout.Offset.position, to: FleetFileLayout.Offset.announced, inDirectory: directory)
        // The position moves after this. That is soon in a machine that breaks no rule.
        defer { usleep(50_000) }
        return node.remove(removals)
      }
    default: break
    }
    return altered
  }

  /// Whether purges may have been missed, so that everything is to be removed or validated.
  private static func isDistrust(_ removals: [Removal]) -> Bool { removals.contains { $0.effect == .suspect } }

  /// Removals that are carried out after they were said to be.
  private final class LateRemovals: Sendable {
    private let count = Atomic(0)

    func run(_ removals: [Removal], on node: FleetNode) -> Bool {
      if MembershipDouble.isDistrust(removals) { return node.remove(removals) }
      count.add(1, ordering: .sequentiallyConsistent)
      startThread { [self] in
        usleep(50_000)
        _ = node.remove(removals)
        count.subtract(1, ordering: .sequentiallyConsistent)
      }
      return true
    }

    func wait() {
      while count.load(ordering: .sequentiallyConsistent) > 0 { usleep(1000) }
    }
  }
}

extension MachineLease {
  /// A lease in a word of its own.
  ///
  /// - Parameter word: Lives as long as the process.
  private convenience init(_ word: UnsafeMutableRawPointer) {
    self.init(deadline: word.assumingMemoryBound(to: Atomic<UInt64>.self), in: Nothing())
  }

  private final class Nothing: Sendable {}

  fileprivate static var endless: MachineLease {
    let word = mapShared(nil, byteCount: 8)
    word.storeBytes(of: UInt64.max, as: UInt64.self)
    return MachineLease(word)
  }

  /// A lease that a thread copies from the fleet file: counted from the moment at which a renewal has arrived, or kept
  /// when the machine leaves, for its next process.
  fileprivate static func copied(inDirectory directory: String, breaking rule: FleetRule) -> MachineLease {
    let isKept = rule == .leaseEndsBeforeLeaving
    // The deadline, and the ID of the machine.
    let memory = mapShared(isKept ? directory + ".lease" : nil, byteCount: 24)
    let lease = MachineLease(memory)
    let id = FleetFileLayout.bytes(16, at: FleetFileLayout.Offset.node, inDirectory: directory)
    let known = UnsafeMutableRawBufferPointer(start: memory + 8, count: 16)
    // After a restart of the machine its lease has ended.
    if Array(known) != id { memory.storeBytes(of: 0, as: UInt64.self) }
    known.copyBytes(from: id)
    nonisolated(unsafe) let word = memory.assumingMemoryBound(to: Atomic<UInt64>.self)
    startThread {
      var last: UInt64 = 0
      while true {
        usleep(1000)
        let now = BootClock.now
        let left = FleetMachineState.read(directory: directory)?.leaseSecondsLeft ?? 0
        let end = left > 0 ? now + UInt64(left * 1e9) : 0
        if isKept {
          word.pointee.max(end, ordering: .releasing)
        } else if end == 0 {
          // Over, or revoked.
          if last > now + 5_000_000 { word.pointee.store(0, ordering: .releasing) }
        } else if end > last + 5_000_000 {
          word.pointee.store(now + UInt64(FleetMachine.lease * 1e9), ordering: .releasing)
        }
        last = end
      }
    }
    return lease
  }
}

extension FleetFileLayout {
  /// Reads the fleet file of a directory.
  fileprivate static func bytes(_ count: Int, at offset: Int, inDirectory directory: String) -> [UInt8] {
    var bytes = [UInt8](repeating: 0, count: count)
    let file = open(directory + "/" + fileName, O_RDONLY | O_CLOEXEC)
    defer { close(file) }
    guard pread(file, &bytes, count, off_t(offset)) == count else { fail("no fleet file in \(directory)") }
    return bytes
  }

  /// Copies a word of the fleet file, which processes have mapped, to another one.
  fileprivate static func copyWord(at offset: Int, to other: Int, inDirectory directory: String) {
    let word = bytes(8, at: offset, inDirectory: directory)
    let file = open(directory + "/" + fileName, O_WRONLY | O_CLOEXEC)
    defer { close(file) }
    guard pwrite(file, word, 8, off_t(other)) == 8 else { fail("no fleet file in \(directory)") }
  }
}
