extension Reuse {
  /// The fields of an answer with the stored response: those stored, `Age` replaced by `age` seconds (RFC 9111, 4).
  public static func answerFields(for stored: some StoredResponseView, age: Int) -> HTTPFields {
    var fields = stored.fields
    fields.set("Age", String(max(0, age)))
    return fields
  }

  /// The head of a 304 for `.notModified`: what RFC 9110, 15.4.5 asks for, and what describes the cache's part.
  public static func notModifiedHead(for stored: some StoredResponseView, age: Int) -> ResponseHead {
    var head = ResponseHead(status: 304)
    let hasTag = stored.facts.flags.isDisjoint(with: [.strongETag, .weakETag]) == false
    for (name, value) in stored.fields {
      switch name.asciiLowercased() {
      case "cache-control", "content-location", "date", "etag", "expires", "vary", "cache-status":
        head.fields.append(name: name, value: value)
      // 15.4.5: only without an entity tag is it of use.
      case "last-modified" where !hasTag: head.fields.append(name: name, value: value)
      default: break
      }
    }
    head.fields.set("Age", String(max(0, age)))
    return head
  }
}
