import Foundation
import FoundationNetworking
import HTTPCaching
import LMDBURLCache

/// Fetches the sitemaps of an index through the cache.
enum SitemapIndex {
  private static let printedFailureCount = 20

  /// Adds the URLs of all sitemaps of a list's index to the list. Prints the error of each sitemap that cannot be read.
  ///
  /// - Parameter fields: Header fields for each request.
  /// - Returns: The number of sitemaps that cannot be read.
  /// - Throws: `ToolError` for more URLs than a list can have; `CancellationError`.
  static func read(
    into list: inout WarmList, through cache: LMDBURLCache, fields: [(name: String, value: String)]
  ) async throws -> Int {
    var bar = ProgressBar("Reading sitemaps")
    let sitemaps = list.sitemaps
    var failedCount = 0
    for (number, text) in sitemaps.enumerated() {
      bar.update(done: number, total: sitemaps.count)
      let urls: [String]
      do { urls = try await self.urls(of: text, through: cache, fields: fields) } catch let error as ToolError {
        failedCount += 1
        bar.hide()
        if failedCount <= printedFailureCount { Output.error("urlcache warm: \(error.description)\n") }
        continue
      }
      try list.add(urls)
    }
    bar.end()
    if failedCount > printedFailureCount {
      let count = failedCount - printedFailureCount
      Output.error("urlcache warm: \(Format.count(count, "more sitemap")) cannot be read.\n")
    }
    return failedCount
  }

  private static func urls(
    of text: String, through cache: LMDBURLCache, fields: [(name: String, value: String)]
  ) async throws -> [String] {
    let name = "The sitemap \(Format.shortened(Format.withoutUser(text)))"
    guard let url = URL(string: text), url.isHTTPWithHost else {
      throw ToolError("\(name) of the index is not an http or https URL with a host.")
    }
    var request = URLRequest(url: url)
    for (name, value) in fields { request.setValue(value, forHTTPHeaderField: name) }
    do {
      let (chunks, response) = try await cache.bytes(for: request)
      let status = (response as? HTTPURLResponse)?.statusCode ?? 0
      guard status == 200 else { throw ToolError("\(name) cannot be fetched: status \(status).") }
      var document = Data()
      let content = Decompressor(name: name)
      func append(_ piece: Data) throws {
        document.append(piece)
        guard document.count <= WarmList.maximumSitemapByteCount else {
          throw ToolError("\(name) has more than 50 MiB.")
        }
      }
      for try await chunk in chunks {
        content.append(chunk)
        while let piece = try content.next() { try append(piece) }
      }
      if let rest = try content.end() { try append(rest) }
      guard case .urls(let urls) = try SitemapReader.read(document, name: name) else {
        throw ToolError("\(name) is an index itself, which the protocol of sitemaps forbids.")
      }
      return urls
    } catch let error as URLError {
      throw Task.isCancelled ? CancellationError() : ToolError("\(name): \(CacheAccess.sentence(for: error)).")
    }
  }
}
