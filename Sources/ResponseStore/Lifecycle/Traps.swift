/// Traps for programming errors, with a message. `precondition` would be silent in release builds.
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
    fatalError("LMDBURLCache: a stored body of \(byteCount) bytes does not contain the range \(range).")
  }

  @inline(never)
  static func bodyIsInStore() -> Never {
    fatalError("LMDBURLCache: the lookup left the body in the store; read it with storedBody.")
  }
}
