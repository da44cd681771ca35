extension Reuse {
  /// Returns the stored fields with `Age` set to `age` seconds, for a response from storage (RFC 9111, section 4).
  public static func responseFields(for stored: some StoredResponseMetadata, age: Int) -> HeaderFields {
    var fields = stored.fields
    fields.set("Age", String(max(0, age)))
    return fields
  }

  /// Returns the head of a 304 for `.notModified`: the fields required by RFC 9110, 15.4.5, `Age` and `Cache-Status`.
  public static func notModifiedHead(for stored: some StoredResponseMetadata, age: Int) -> ResponseHead {
    var head = ResponseHead(status: 304)
    let hasTag = stored.freshness.flags.isDisjoint(with: [.strongETag, .weakETag]) == false
    for (name, value) in stored.fields {
      switch name.asciiLowercased() {
      case "cache-control", "content-location", "date", "etag", "expires", "vary", "cache-status":
        head.fields.append(name: name, value: value)
      // 15.4.5: it is useful only without an entity tag.
      case "last-modified" where !hasTag: head.fields.append(name: name, value: value)
      default: break
      }
    }
    head.fields.set("Age", String(max(0, age)))
    return head
  }
}
