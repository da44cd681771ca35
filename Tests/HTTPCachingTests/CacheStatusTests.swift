import HTTPCaching
import Testing

@Suite("Cache-Status field")
struct CacheStatusTests {
  struct Case: RequirementCase {
    let id: String
    let section: String
    let rows: [Int]
    let status: CacheStatus
    let text: String

    init(_ id: String, _ section: String, rows: [Int], _ status: CacheStatus, _ text: String) {
      self.id = id
      self.section = section
      self.rows = rows
      self.status = status
      self.text = text
    }
  }

  static let all: CacheStatus = {
    var status = CacheStatus(name: "C", forward: .stale, timeToLive: 60)
    status.forwardStatus = 304
    status.isStored = true
    status.isCollapsed = true
    return status
  }()

  static let hit: CacheStatus = {
    var status = all
    status.forward = nil
    return status
  }()

  static let cases: [Case] = [
    Case("status-hit", "9211 2.1", rows: [96, 99], CacheStatus(name: "Cache"), "Cache; hit"),
    Case("status-ttl", "9211 2.5", rows: [100], CacheStatus(name: "Cache", timeToLive: -5), "Cache; hit; ttl=-5"),
    Case("status-string", "9211 2", rows: [96], CacheStatus(name: "my \"cache\""), #""my \"cache\""; hit"#),
    Case("status-not-ascii", "9211 2", rows: [96], CacheStatus(name: "é\r\n"), "\"????\"; hit"),
    Case("status-empty-name", "9211 2", rows: [96], CacheStatus(name: ""), "\"\"; hit"),
    Case("status-fwd", "9211 2.2", rows: [99], CacheStatus(name: "C", forward: .uriMiss), "C; fwd=uri-miss"),
    Case(
      "status-all", "9211 2", rows: [99, 100, 101], all,
      "C; fwd=stale; fwd-status=304; stored; collapsed; ttl=60"),
    Case("status-hit-says-no-more", "9211 2.3", rows: [99, 100], hit, "C; hit; ttl=60"),
    Case(
      "status-huge-ttl", "9651 3.3.1", rows: [96], CacheStatus(name: "C", timeToLive: .min),
      "C; hit; ttl=-999999999999999"),
  ]

  @Test("Each status is rendered as RFC 9211 defines it", arguments: cases)
  func renders(_ test: Case) {
    #expect(test.status.rendered == test.text)
  }

  /// Row 97; RFC 9211, 2.
  @Test func appendsAtTheEnd() {
    var response = fields([("Cache-Status", "Origin; hit"), ("X", "1")])
    CacheStatus(name: "Mine").append(to: &response)
    #expect(response.values(of: "Cache-Status") == ["Origin; hit", "Mine; hit"])
  }
}
