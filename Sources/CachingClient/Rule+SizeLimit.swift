import CacheModel
import HTTPCaching

extension Rule {
  /// Creates the rule for a limit of the store.
  package init(_ limit: SizeLimit) {
    self =
      switch limit {
      case .body(let byteCount): .bodyTooLarge(limit: byteCount)
      case .head(let byteCount): .recordTooLarge(limit: byteCount)
      }
  }
}
