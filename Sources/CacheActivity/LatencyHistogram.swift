/// A histogram of durations, with buckets whose width is at most an eighth of their lower bound.
public struct LatencyHistogram: Sendable, Hashable {
  /// The number of durations in each bucket. Corrupt numbers can have any size, so their sums must not trap.
  private var counts: [Int]
  /// The sum of all durations in nanoseconds.
  public private(set) var totalNanoseconds: Int

  private static let subBucketBits = 3
  private static let subBucketCount = 1 << subBucketBits
  /// Durations of 2⁴⁰ ns, about 18 minutes, and more are in the last bucket.
  private static let maximumExponent = 39
  static let bucketCount = (maximumExponent - subBucketBits + 2) * subBucketCount

  /// Creates an empty histogram.
  public init() {
    counts = [Int](repeating: 0, count: Self.bucketCount)
    totalNanoseconds = 0
  }

  init(counts: [Int], totalNanoseconds: Int) {
    precondition(counts.count == Self.bucketCount, "a histogram has \(Self.bucketCount) buckets")
    self.counts = counts
    self.totalNanoseconds = totalNanoseconds
  }

  static func bucket(ofNanoseconds nanoseconds: UInt64) -> Int {
    guard nanoseconds >= subBucketCount else { return Int(nanoseconds) }
    let exponent = 63 - nanoseconds.leadingZeroBitCount
    guard exponent <= maximumExponent else { return bucketCount - 1 }
    let shift = exponent - subBucketBits
    return (shift + 1) << subBucketBits | Int(nanoseconds >> UInt64(shift)) & (subBucketCount - 1)
  }

  /// Returns the shortest duration above those in a bucket, in nanoseconds.
  static func upperBound(ofBucket bucket: Int) -> Int {
    guard bucket >= subBucketCount else { return bucket + 1 }
    let shift = bucket >> subBucketBits - 1
    return (subBucketCount + bucket & (subBucketCount - 1) + 1) << shift
  }

  /// The number of durations.
  public var count: Int { counts.reduce(0, &+) }

  /// Returns the number of durations below a power of two, in nanoseconds.
  ///
  /// - Parameter exponent: The exponent of the power, from 3 to 40.
  public func count(belowPowerOfTwo exponent: Int) -> Int {
    guard (Self.subBucketBits...(Self.maximumExponent + 1)).contains(exponent) else {
      // The message of `precondition` would be missing in release builds.
      fatalError("LMDBURLCache: the exponent of a latency must be from 3 to 40, not \(exponent).")
    }
    return counts.prefix((exponent - Self.subBucketBits + 1) * Self.subBucketCount).reduce(0, &+)
  }

  /// Returns an upper bound of a percentile in seconds, at most an eighth too high; nil if the histogram is empty.
  ///
  /// - Parameter percentile: From 0 to 100, such as 99 for the duration that 99% do not exceed.
  public func seconds(atPercentile percentile: Double) -> Double? {
    let total = count
    guard total > 0 else { return nil }
    let wanted = max(1, Int(exactly: (Double(total) * min(max(percentile, 0), 100) / 100).rounded(.up)) ?? total)
    var seen = 0
    for (bucket, count) in counts.enumerated() {
      seen &+= count
      if seen >= wanted { return Double(Self.upperBound(ofBucket: bucket)) / 1e9 }
    }
    return nil
  }

  /// Returns the durations that were added since an earlier reading of the same histogram.
  public func since(_ earlier: LatencyHistogram) -> LatencyHistogram {
    LatencyHistogram(
      counts: zip(counts, earlier.counts).map { max($0 - $1, 0) },
      totalNanoseconds: max(totalNanoseconds - earlier.totalNanoseconds, 0))
  }
}
