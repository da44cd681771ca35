import Foundation
import HTTPCaching
import Testing

@testable import LMDBURLCache

@Suite("Basic challenges")
struct BasicChallengeTests {
  @Test(
    "The first Basic challenge is found among those of a response",
    arguments: [
      (["Basic realm=\"r\""], "r"), (["basic REALM = \"a \\\"b\\\", c\""], "a \"b\", c"),
      (["Basic realm=token"], "token"),
      (["Basic charset=\"UTF-8\", realm=\"r\""], "r"), (["Basic"], "none"), (["Basic, Bearer realm=\"b\""], "none"),
      (["Digest realm=\"d\", nonce=\"x, Basic realm=\\\"n\\\"\", Basic realm=\"r\""], "r"),
      (["Negotiate", "Basic realm=\"r\""], "r"), (["Basic realm=\"1\", Basic realm=\"2\""], "1"),
      (["Bearer realm=\"b\""], nil), (["Negotiate abc=="], nil), ([""], nil), ([], nil), (["=, ,=\"Basic"], nil),
    ] as [([String], String?)])
  func realms(_ lines: [String], _ realm: String?) throws {
    var fields = HeaderFields()
    for line in lines { fields.append(name: "WWW-Authenticate", value: line) }
    #expect(BasicChallenge(fields).map { $0.realm ?? "none" } == realm)
  }

  @Test("A protection space has the port that the URL implies")
  func space() throws {
    let challenge = try #require(BasicChallenge(["WWW-Authenticate": "Basic realm=\"r\""]))
    for (text, port, scheme) in [
      ("https://a.test/", 443, "https"), ("HTTP://a.test/", 80, "http"), ("http://a.test:81/", 81, "http"),
    ] {
      let url = try #require(URL(string: text))
      let space = try #require(challenge.space(of: url))
      #expect(space.host == "a.test")
      #expect(space.port == port)
      #expect(space.`protocol` == scheme)
      #expect(space.realm == "r")
    }
  }
}
