#if canImport(FoundationEssentials)
  public import FoundationEssentials
#else
  public import Foundation
#endif

/// What is known of a response that a caller stores by hand, whether or not RFC 9111 would have it stored.
public struct DirectStorage: Sendable, Hashable {
  /// The fields to keep (RFC 9111, 3.1).
  public let fields: HTTPFields
  /// The facts for later decisions.
  public let facts: FreshnessFacts
  /// Whether request or response say `no-store` (RFC 9111, 5.2.1.5 and 5.2.2.5).
  public let forbidsStoring: Bool
  /// Whether the response says itself how long it lives, by `Cache-Control` or `Expires`.
  public let hasExplicitLifetime: Bool

  /// Looks at the answer to `request`, received at `responseTime`.
  public init(request: RequestHead, response: ResponseHead, responseTime: Date, options: CachingOptions) {
    let directives = ResponseDirectives(response.fields, targetedFieldNames: options.targetedFieldNames)
    let kept = Storability.kept(
      request: request, response: response, directives: directives, requestTime: responseTime,
      responseTime: responseTime, options: options)
    guard case .store(let fields, let facts) = kept else { preconditionFailure("`kept` refuses nothing") }
    self.fields = fields
    self.facts = facts
    // 5.2.2.3: must-understand overrides the no-store beside it where the status is understood.
    let isOverridden = directives.mustUnderstand && Freshness.understands(response.status)
    forbidsStoring = (directives.noStore && !isOverridden) || RequestDirectives(request.fields).noStore
    hasExplicitLifetime = directives.maxAge != nil || directives.noCache || response.fields.contains("expires")
  }
}
