import CacheActivity

/// A storage whose directory has counters, in which its caching client counts requests.
package protocol CountsActivity {
  /// The counters of the directory.
  var activity: ActivityReference { get }
}
