/// Mistakes of the caller end the process with a sentence. Not by `precondition`, which is silent in release builds.
enum Trap {
  @inline(never)
  static func usedAfterClose(_ directory: String) -> Never {
    fatalError("LMDBURLCache: the response store at \(directory) is used after close().")
  }

  @inline(never)
  static func closedTwice(_ directory: String) -> Never {
    fatalError("LMDBURLCache: the response store at \(directory) is closed more often than it was opened.")
  }

  @inline(never)
  static func capacityTooSmall(_ byteCount: Int) -> Never {
    fatalError(
      "LMDBURLCache: a response store needs a capacity of at least \(ResponseStore.smallestCapacityByteCount) bytes, "
        + "not \(byteCount).")
  }
}
