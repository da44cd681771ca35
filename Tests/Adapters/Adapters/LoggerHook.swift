import LMDBURLCache
import Logging
import ResponseStore

extension LMDBURLCache.Options {
  /// Sends the lines of a cache to a logger.
  mutating func log(to logger: Logger) {
    log = { line in logger.warning("\(line)") }
  }
}

extension ResponseStore.Options {
  /// Sends the lines of a store to a logger.
  mutating func log(to logger: Logger) {
    log = { line in logger.warning("\(line)") }
  }
}
