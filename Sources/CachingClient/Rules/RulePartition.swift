import HTTPCaching

/// The partition of a request to which rules with partition fields apply.
///
/// Its text is `{x-tenant=a}`, followed by the partition that the program gives the request. Several fields are
/// separated by `;`, several lines of one field by `|`. A field without a line has no `=`. Different fields and values
/// have different texts: within the braces, `\` precedes each of these characters that is part of a value.
enum RulePartition {
  static func text(_ partition: String, fields: [String], values: (String) -> [String]) -> String {
    guard !fields.isEmpty else {
      // A program that takes its partition from the request could otherwise give it the text of another one.
      return partition.hasPrefix("{") ? "{}" + partition : partition
    }
    let parts = fields.map { name in
      let lines = values(name)
      return lines.isEmpty ? name : name + "=" + lines.map(escaped).joined(separator: "|")
    }
    return "{" + parts.joined(separator: ";") + "}" + partition
  }

  private static func escaped(_ value: String) -> String {
    var text = ""
    for scalar in value.unicodeScalars {
      if "\\|;}".unicodeScalars.contains(scalar) { text += "\\" }
      text.unicodeScalars.append(scalar)
    }
    return text
  }
}
