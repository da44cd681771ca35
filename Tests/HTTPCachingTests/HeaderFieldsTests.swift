import HTTPCaching
import Testing

@Suite("Header fields")
struct HeaderFieldsTests {
  @Test func namesCompareWithoutCase() {
    let fields = HeaderFields([("ETag", "\"a\""), ("Vary", "A"), ("vary", "B")])
    #expect(fields["VARY"] == "A, B")
    #expect(fields.values(of: "Vary") == ["A", "B"])
    #expect(fields.first("vary") == "A")
    let same = HeaderFields([("etag", "\"a\""), ("VARY", "A"), ("Vary", "B")])
    #expect(fields == same && fields.hashValue == same.hashValue)
    #expect(fields != HeaderFields([("Vary", "A"), ("vary", "B"), ("ETag", "\"a\"")]))
    #expect(!fields.contains("ETa") && fields["Missing"] == nil)
  }

  @Test func replacesInPlace() {
    var fields = HeaderFields([("A", "1"), ("B", "2"), ("a", "3"), ("C", "4")])
    fields.set("a", "9")
    #expect(fields.map(\.value) == ["9", "2", "4"])
    fields["D"] = "5"
    fields["b"] = nil
    #expect(fields.map(\.name) == ["a", "C", "D"])
    fields.set("C", values: ["x", "y"])
    #expect(fields.values(of: "c") == ["x", "y"])
    fields.append(name: "C", value: "z")
    #expect(fields["C"] == "x, y, z")
  }

  /// Row 91; RFC 9110, 5.5.
  @Test(
    "Names and values that a message cannot contain are detected and sanitized",
    arguments: [("A", "1\r\nB: 2"), ("A", "1\n"), ("A", "\0"), ("A B", "1"), ("", "1"), ("A:", "1")])
  func malformed(name: String, value: String) {
    let fields = HeaderFields([("Ok", "yes"), (name, value)])
    #expect(!fields.isWellFormed)
    let clean = fields.sanitized()
    #expect(clean.isWellFormed && clean["Ok"] == "yes")
  }
}
