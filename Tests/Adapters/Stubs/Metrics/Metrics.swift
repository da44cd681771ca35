// The declarations of swift-metrics 2.13.1 that the adapters use. Tests read what was published.
import Synchronization

/// The published values, by label and dimensions.
package let publishedMetrics = Mutex<[String: Int64]>([:])

private func key(_ label: String, _ dimensions: [(String, String)]) -> String {
  label + dimensions.map { "{\($0.0)=\($0.1)}" }.joined()
}

/// A value that only grows.
public final class Counter: Sendable {
  private let key: String

  /// A counter.
  public init(label: String, dimensions: [(String, String)] = []) {
    key = Metrics.key(label, dimensions)
  }

  /// Adds an amount, which is not negative.
  public func increment<DataType: BinaryInteger>(by amount: DataType) {
    precondition(amount >= 0)
    publishedMetrics.withLock { $0[key, default: 0] += Int64(amount) }
  }
}

/// A value that rises and falls.
public final class Gauge: Sendable {
  private let key: String

  /// A gauge.
  public init(label: String, dimensions: [(String, String)] = []) {
    key = Metrics.key(label, dimensions)
  }

  /// Sets the value.
  public func record<DataType: BinaryInteger>(_ value: DataType) {
    publishedMetrics.withLock { $0[key] = Int64(value) }
  }
}
