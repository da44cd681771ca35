import Testing

@Suite("Names of this package and of others")
struct NameTests {
  @Test("A file that imports this package and another one uses the other one's names without qualification")
  func otherNamesStayUnambiguous() {
    // An ambiguous name would not compile.
    #expect(String(reflecting: type(of: sendOverOpenAPI())) == "OpenAPIURLSession.URLSessionTransport")
    #expect(String(reflecting: type(of: openAPIFields())) == "HTTPTypes.HTTPFields")
    #expect(String(reflecting: type(of: serverBodies().0)) == "Hummingbird.RequestBody")
    #expect(String(reflecting: type(of: serverBodies().1)) == "Hummingbird.ResponseBody")
    #expect(String(reflecting: type(of: serverEnvironment())) == "Hummingbird.Environment")
    #expect(String(reflecting: type(of: vaporMessages().0)) == "Vapor.ClientRequest")
    #expect(String(reflecting: type(of: vaporMessages().1)) == "Vapor.ClientResponse")
    #expect(String(reflecting: type(of: vaporEnvironment())) == "Vapor.Environment")
  }
}
