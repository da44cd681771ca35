import Foundation
import FoundationNetworking
import Testing

@testable import LMDBURLCache

@Suite("Credentials of redirected requests")
struct RedirectOriginTests {
  @Test(
    "A redirect keeps the credentials within an origin, however its URL is written, and removes them for others",
    arguments: [
      ("https://a.example/1", "https://a.example/2", true), ("https://a.example/1", "https://A.example:443/2", true),
      ("http://a.example:80/1", "http://a.example/2", true), ("http://a.example:81/1", "/2", true),
      ("https://a.example/1", "http://a.example/2", false), ("https://a.example/1", "https://a.example:444/2", false),
      ("https://a.example/1", "https://b.example/2", false), ("https://a.example/1", "//b.example/2", false),
    ])
  func credentials(from: String, location: String, areKept: Bool) throws {
    var request = URLRequest(url: URL(string: from)!)
    request.setValue("secret", forHTTPHeaderField: "Authorization")
    request.setValue("id=1", forHTTPHeaderField: "Cookie")
    let next = try #require(Redirect.next(after: 302, location: { location }, request: request))
    #expect((next.value(forHTTPHeaderField: "Authorization") != nil) == areKept)
    #expect((next.value(forHTTPHeaderField: "Cookie") != nil) == areKept)
  }
}
