import Foundation
import HTTPCaching
import ResponseStore
import Testing

/// Tests with numbered responses of two hosts, whose bodies are texts.
protocol NumberedResponses {}

extension NumberedResponses {
  func url(_ number: Int) -> String { "http://host\(number % 2).example/\(number)" }

  /// Returns a store with the responses below a number, stored a second apart with the text "older".
  func fixture(withResponsesBelow count: Int) throws -> StoreFixture {
    let fixture = try StoreFixture()
    for number in 0..<count {
      store(number, "older", in: fixture)
      fixture.clock.advance(by: 1)
    }
    return fixture
  }

  func store(_ number: Int, _ text: String, in fixture: StoreFixture) {
    fixture.store.store(fixture.response(url(number), body: Data(text.utf8)))
    fixture.store.writePending()
  }

  func text(_ number: Int, in fixture: StoreFixture) -> String? {
    fixture.body(url(number)).map { String(decoding: $0, as: UTF8.self) }
  }
}
