package import ResponseStore

/// A storage whose directory has counters, in which its caching client counts requests.
package protocol CountsActivity {
  /// The counters of the directory.
  var activity: ActivityReference { get }
}

extension StoreStorage: CountsActivity {
  package var activity: ActivityReference { store.activity }
}
