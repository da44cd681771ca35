import FoundationEssentials
import HTTPCaching

/// A complete, storable response in the hands of those who waited for it. They do not read it back from the storage: a storage
/// that is full or switched off must not turn one fetch into many.
struct SharedResponse: StoredResponseView, Sendable {
  let status: Int
  let facts: FreshnessFacts
  let fields: HTTPFields
  let body: Data
  let vary: VarySelection

  var bodyByteCount: Int { body.count }

  init(_ proposal: StorageProposal) {
    status = proposal.status
    facts = proposal.facts
    fields = proposal.fields
    body = proposal.body
    vary = proposal.vary
  }

  init(status: Int, fields: HTTPFields, facts: FreshnessFacts, body: Data, vary: VarySelection) {
    self.status = status
    self.facts = facts
    self.fields = fields
    self.body = body
    self.vary = vary
  }
}

/// A stored response with the fields and facts a 304 gave it, as the answer to the request that asked.
struct UpdatedView<Base: StoredResponseView>: StoredResponseView {
  let base: Base
  let fields: HTTPFields
  let facts: FreshnessFacts

  var status: Int { base.status }
  var bodyByteCount: Int { base.bodyByteCount }
}
