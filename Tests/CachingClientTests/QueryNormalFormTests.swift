import CachingClient
import Foundation
import Testing

/// The normal form of JSON (RFC 10008, section 2.7): it removes no difference that can have a meaning.
@Suite("Normal form of queries", .timeLimit(.minutes(1)))
struct QueryNormalFormTests {
  private static func json(_ text: String, as type: String? = "application/json") -> String? {
    QueryNormalForm.json.normalized(Data(text.utf8), contentType: type).map { String(decoding: $0, as: UTF8.self) }
  }

  struct Form: CustomTestStringConvertible, Sendable {
    let content: String
    /// Nil: there is none.
    let normal: String?

    init(_ content: String, _ normal: String?) { (self.content, self.normal) = (content, normal) }

    var testDescription: String { content.debugDescription }
  }

  static let forms: [Form] = [
    Form(#" { "b" : [ 1 , 2 ] ,"a":{ } } "#, #"{"a":{},"b":[1,2]}"#),
    Form("\t[\r\n]\n", "[]"),
    Form(#"{"b":{"d":1,"c":2},"a":[{"f":1,"e":2}]}"#, #"{"a":[{"e":2,"f":1}],"b":{"c":2,"d":1}}"#),
    // The order of an array, the text of a number and of a string can have a meaning.
    Form("[2,1]", "[2,1]"),
    Form(
      "[1, 1.0, 1e0, 1E+0, -0, 10e-2, 0.10, 123456789012345678901234567890]",
      "[1,1.0,1e0,1E+0,-0,10e-2,0.10,123456789012345678901234567890]"),
    Form(
      #"["a", "\u0061", "\/", "/", " a  b ", "é", "é", "\ud800", "\"{ }\\"]"#,
      #"["a","\u0061","\/","/"," a  b ","é","é","\ud800","\"{ }\\"]"#),
    Form("true", "true"), Form(" null ", "null"), Form("false", "false"), Form("0", "0"), Form(#""x""#, #""x""#),
    Form(#"{"":1,"a":2," ":3}"#, #"{" ":3,"":1,"a":2}"#),
    Form(#"{"ab":1,"a":2,"a!":3}"#, #"{"a!":3,"a":2,"ab":1}"#),
    Form(#"{"ü":1,"z":2}"#, #"{"z":2,"ü":1}"#),
    // Names that some programs take for one.
    Form(#"{"a":1,"a":1}"#, nil),
    Form(#"{"a":1,"b":2,"a":3}"#, nil),
    Form(#"[{"x":{"a":1,"a":2}}]"#, nil),
    Form(#"{"a":1,"\u0061":2}"#, nil),
    Form(#"{"\n":1}"#, nil),
    Form(#"{"a":1,"A":2}"#, nil),
    Form("{\"\u{E9}\":1,\"e\u{301}\":2}", nil),
    Form("{\"k\":1,\"\u{212A}\":2}", nil),
    Form("{\"s\":1,\"\u{17F}\":2}", nil),
    // Not JSON.
    Form("", nil), Form(" ", nil), Form("{", nil), Form("[1", nil), Form("[1,]", nil), Form("[,1]", nil),
    Form("[1 2]", nil), Form(#"{"a":1,}"#, nil), Form(#"{"a"}"#, nil), Form(#"{"a" 1}"#, nil), Form("{a:1}", nil),
    Form("{1:1}", nil), Form("{'a':1}", nil), Form("1 2", nil), Form("[1]]", nil), Form("{}x", nil), Form("tru", nil),
    Form("True", nil), Form("truex", nil), Form("NaN", nil), Form("+1", nil), Form("01", nil), Form("-", nil),
    Form("1.", nil), Form(".5", nil), Form("1e", nil), Form("1e+", nil), Form("0x1", nil), Form("--1", nil),
    Form(#""a"#, nil), Form(#""\"#, nil), Form(#""\x""#, nil), Form(#""\u12"#, nil), Form(#""\u12g4""#, nil),
    Form("\"\t\"", nil), Form("\"\u{0}\"", nil), Form("\u{FEFF}{}", nil), Form("\u{A0}{}", nil), Form("/**/{}", nil),
    Form("[1]\u{0}", nil), Form("\u{B}1", nil),
  ]

  /// Row 114.
  @Test("JSON has one form without spaces and with sorted members, or none", arguments: forms)
  func normalizes(_ form: Form) {
    #expect(Self.json(form.content) == form.normal)
    if let normal = form.normal { #expect(Self.json(normal) == normal) }
  }

  @Test("Malformed UTF-8 has no normal form")
  func malformedText() {
    for bytes: [UInt8] in [[0x80], [0xC3], [0xC0, 0x80], [0xED, 0xA0, 0x80], [0xF5, 0x80, 0x80, 0x80]] {
      let content = Data([0x22] + bytes + [0x22])
      #expect(QueryNormalForm.json.normalized(content, contentType: "application/json") == nil)
    }
    let replacement = Data("\"\u{FFFD}\"".utf8)
    #expect(QueryNormalForm.json.normalized(replacement, contentType: "application/json") == replacement)
  }

  @Test("Content nested more than 128 deep has no normal form, and more does not end the process")
  func depth() {
    func nested(_ depth: Int) -> String {
      String(repeating: #"[{"a":"#, count: depth / 2) + (depth % 2 == 1 ? "[]" : "1")
        + String(repeating: "}]", count: depth / 2)
    }
    #expect(Self.json(nested(128)) == nested(128))
    #expect(Self.json(nested(129)) == nil)
    #expect(Self.json(nested(100_000)) == nil)
  }

  @Test("Only JSON in UTF-8 has a normal form")
  func types() {
    let accepted = [
      "application/json", "Application/JSON", "application/json;charset=utf-8", "application/json ; Charset=\"UTF-8\"",
      "application/vnd.api+json", "application/ld+json; profile=\"x\"",
    ]
    for type in accepted { #expect(Self.json(" 1 ", as: type) == "1", "\(type)") }
    let refused = [
      nil, "", "text/plain", "application/jsonpath", "application/json-seq", "application/x-www-form-urlencoded",
      "text/html, application/json", "application/json, text/html", "application/json;charset=utf-16",
      "application/json; x=y; charset=iso-2022-jp", "application/json; charset = utf-7", "json",
    ]
    for type in refused { #expect(Self.json(" 1 ", as: type) == nil, "\(type ?? "none")") }
  }

  @Test("A normal form is identified by its name")
  func identity() {
    let own = QueryNormalForm(name: "json") { _, _ in nil }
    #expect(own == .json && Set([own, .json]).count == 1)
    #expect(QueryNormalForm(name: "upper") { content, _ in content } != .json)
    #expect(own.normalized(Data("1".utf8), contentType: "application/json") == nil)
  }

  // MARK: - A plain model

  /// A JSON value; two texts mean the same if and only if their values are equal.
  indirect enum Value: Hashable {
    case text(String)
    case array([Value])
    case object([String: Value])

    static func random(_ random: inout SeededGenerator, depth: Int = 0) -> Value {
      let count = Int.random(in: 0...3, using: &random)
      switch Int.random(in: 0..<(depth < 3 ? 4 : 2), using: &random) {
      case 2: return .array((0..<count).map { _ in .random(&random, depth: depth + 1) })
      case 3:
        let names = ["a", "b", "ab", "", " ", "ü", "z{", "}"].shuffled(using: &random).prefix(count)
        return .object(
          Dictionary(uniqueKeysWithValues: names.map { ($0, .random(&random, depth: depth + 1)) }))
      default:
        let texts = ["1", "1.0", "-1", "true", "null", #""""#, #""a""#, #""\u0061""#, #""{ }""#, #"" ,""#]
        return .text(texts.randomElement(using: &random) ?? "1")
      }
    }

    /// Returns the value with a change somewhere.
    func changed(_ random: inout SeededGenerator) -> Value {
      switch self {
      case .array(var elements) where !elements.isEmpty && Bool.random(using: &random):
        elements.swapAt(0, Int.random(in: 0..<elements.count, using: &random))
        return .array(elements)
      case .object(var members) where !members.isEmpty && Bool.random(using: &random):
        let name = members.keys.sorted()[0]
        members[name] = members[name]?.changed(&random)
        return .object(members)
      default: return .random(&random)
      }
    }

    func text(_ random: inout SeededGenerator) -> String {
      func space() -> String { ["", "", " ", "\n", "\t\r "].randomElement(using: &random) ?? "" }
      switch self {
      case .text(let text): return space() + text + space()
      case .array(let elements):
        return space() + "[" + space() + elements.map { $0.text(&random) }.joined(separator: ",") + "]" + space()
      case .object(let members):
        let texts = members.shuffled(using: &random).map {
          space() + "\"\($0.key)\"" + space() + ":" + $0.value.text(&random)
        }
        return space() + "{" + space() + texts.joined(separator: ",") + "}" + space()
      }
    }
  }

  /// Row 114.
  @Test("Normal forms are equal if and only if the values are", arguments: [1, 8259, 10_008])
  func model(seed: UInt64) throws {
    var random = SeededGenerator(seed: seed)
    var equalCount = 0
    for _ in 0..<1500 {
      let first = Value.random(&random)
      let second = Bool.random(using: &random) ? first : first.changed(&random)
      let texts = (first.text(&random), second.text(&random))
      let forms = (try #require(Self.json(texts.0), "\(texts.0)"), try #require(Self.json(texts.1), "\(texts.1)"))
      #expect((forms.0 == forms.1) == (first == second), "\(texts), seed \(seed)")
      #expect(forms.0.utf8.count <= texts.0.utf8.count && Self.json(forms.0) == forms.0, "\(texts.0), seed \(seed)")
      if first == second, texts.0 != texts.1 { equalCount += 1 }
    }
    #expect(equalCount > 200, "seed \(seed)")
  }

  @Test("Changed bytes have no normal form, or one that another parser reads alike", arguments: [2, 4627])
  func damage(seed: UInt64) throws {
    var random = SeededGenerator(seed: seed)
    var validCount = 0
    for _ in 0..<1500 {
      var bytes = Array(Value.random(&random).text(&random).utf8)
      for _ in 0..<Int.random(in: 1...2, using: &random) where !bytes.isEmpty {
        let index = Int.random(in: bytes.indices, using: &random)
        switch Int.random(in: 0..<3, using: &random) {
        case 0: bytes.remove(at: index)
        case 1: bytes[index] = Array("{}[]:,\"\\ 01a.e-u\u{1}".utf8).randomElement(using: &random) ?? 0
        default: bytes.swapAt(index, Int.random(in: bytes.indices, using: &random))
        }
      }
      guard let form = QueryNormalForm.json.normalized(Data(bytes), contentType: "application/json") else { continue }
      validCount += 1
      let text = String(decoding: bytes, as: UTF8.self)
      let read = try #require(
        try? JSONSerialization.jsonObject(with: Data(bytes), options: .fragmentsAllowed) as? NSObject,
        "\(text), seed \(seed)")
      let readForm = try JSONSerialization.jsonObject(with: form, options: .fragmentsAllowed) as? NSObject
      #expect(read == readForm, "\(text), seed \(seed)")
    }
    #expect(validCount > 50, "seed \(seed)")
  }
}
