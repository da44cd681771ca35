/// The version and the names of the storage format. Its sizes are in `Space/StorageSizes.swift`.
///
/// The document `StorageFormat.md` explains them. Change both together, and raise the version.
enum StorageFormat {
  /// The version in `meta`; a file with another version is quarantined.
  static let version: UInt32 = 5

  static let bodiesTable = "bodies"
  static let datesTable = "dates"
  static let expiriesTable = "expiries"
  static let metaTable = "meta"

  /// The maximum number of variants of a key. A further variant replaces the oldest.
  static let maximumVariantCountPerKey = 128
}
