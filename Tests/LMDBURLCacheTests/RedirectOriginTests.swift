import Foundation
import FoundationNetworking
import Testing

@testable import LMDBURLCache

@Suite("Credentials of redirected requests")
struct RedirectOriginTests {
  @Test(
    "A redirect keeps credentials and Host within an origin, however its URL is written, and removes them for others",
    arguments: [
      ("https://a.example/1", "https://a.example/2", true), ("https://a.example/1", "https://A.example:443/2", true),
      ("http://a.example:80/1", "http://a.example/2", true), ("http://a.example:81/1", "/2", true),
      ("https://a.example/1", "http://a.example/2", false), ("https://a.example/1", "https://a.example:444/2", false),
      ("https://a.example/1", "https://b.example/2", false), ("https://a.example/1", "//b.example/2", false),
    ])
  func credentials(from: String, location: String, areKept: Bool) throws {
    var request = URLRequest(url: URL(string: from)!)
    let fields = ["Authorization": "secret", "Proxy-Authorization": "secret", "Cookie": "id=1", "Host": "a.example"]
    for (name, value) in fields { request.setValue(value, forHTTPHeaderField: name) }
    request.setValue("de", forHTTPHeaderField: "Accept-Language")
    let next = try #require(Redirect.next(after: 302, location: { location }, request: request))
    for name in fields.keys { #expect((next.value(forHTTPHeaderField: name) != nil) == areKept, "\(name)") }
    #expect(next.value(forHTTPHeaderField: "Accept-Language") == "de")
  }
}
