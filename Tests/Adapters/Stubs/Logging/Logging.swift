// The declarations of swift-log 1.15.0 that the adapters use. Tests say where messages go.

/// Takes messages.
public struct Logger: Sendable {
  /// The text of a message.
  public struct Message: ExpressibleByStringLiteral, ExpressibleByStringInterpolation, CustomStringConvertible,
    Sendable
  {
    /// The text.
    public let description: String

    /// A message with a text.
    public init(stringLiteral value: String) { description = value }
  }

  /// The label.
  public let label: String
  private let handler: @Sendable (String) -> Void

  package init(label: String, handler: @escaping @Sendable (String) -> Void) {
    self.label = label
    self.handler = handler
  }

  /// Takes a message of the level `warning`.
  public func warning(
    _ message: @autoclosure () -> Logger.Message, file: String = #fileID, function: String = #function,
    line: UInt = #line
  ) {
    handler("warning: \(message())")
  }

  /// Takes a message of the level `error`.
  public func error(
    _ message: @autoclosure () -> Logger.Message, file: String = #fileID, function: String = #function,
    line: UInt = #line
  ) {
    handler("error: \(message())")
  }
}
