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
      "LMDBURLCache: a response store needs a capacity of at least \(ResponseStore.minimumCapacityByteCount) bytes, "
        + "not \(byteCount).")
  }

  @inline(never)
  static func outsideBody(_ range: Range<Int>, _ byteCount: Int) -> Never {
    fatalError("LMDBURLCache: a stored body of \(byteCount) bytes has no part \(range).")
  }

  @inline(never)
  static func bodyIsInStore() -> Never {
    fatalError("LMDBURLCache: the body was left in the store by the lookup; read it through storedBody.")
  }
}
