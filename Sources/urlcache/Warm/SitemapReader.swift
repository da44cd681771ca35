import Foundation
import FoundationXML

/// Reads the URLs of a sitemap, or of an index of sitemaps (https://www.sitemaps.org/protocol.html).
final class SitemapReader: NSObject, XMLParserDelegate {
  private var urls: [String] = []
  /// The name of the root element; empty before it.
  private var root = ""
  /// The names of the open elements, from the root on.
  private var path: [String] = []
  private var text = ""

  /// The URLs of a document in their order.
  enum Content {
    case urls([String])
    /// The sitemaps of an index.
    case index([String])
  }

  /// Reads a document.
  ///
  /// - Throws: `ToolError` for an incomplete document, another document, and one with entities of its own.
  static func read(_ data: Data, name: String) throws -> Content {
    // The parser leaves out entities that the document declares. A URL with one would become another URL.
    guard data.range(of: Data("<!ENTITY".utf8)) == nil else {
      throw ToolError("\(name) declares XML entities, which are not read. Replace them by their text.")
    }
    let reader = SitemapReader()
    let parser = XMLParser(data: data)
    parser.delegate = reader
    // The parser accepts a document that ends within an element.
    guard parser.parse(), reader.path.isEmpty, !reader.root.isEmpty else {
      throw ToolError("\(name) is not a complete sitemap: the XML is not valid, or ends, in line \(parser.lineNumber).")
    }
    switch reader.root {
    case "urlset": return .urls(reader.urls)
    case "sitemapindex": return .index(reader.urls)
    default: throw ToolError("\(name) is no sitemap: its root element is '\(Format.shortened(reader.root))'.")
    }
  }

  func parser(
    _ parser: XMLParser, didStartElement elementName: String, namespaceURI: String?, qualifiedName: String?,
    attributes: [String: String]
  ) {
    if path.isEmpty { root = elementName }
    path.append(elementName)
    text = ""
  }

  func parser(_ parser: XMLParser, foundCharacters string: String) {
    text += string
  }

  func parser(_ parser: XMLParser, foundCDATA block: Data) {
    text += String(decoding: block, as: UTF8.self)
  }

  func parser(
    _ parser: XMLParser, didEndElement elementName: String, namespaceURI: String?, qualifiedName: String?
  ) {
    if path == ["urlset", "url", "loc"] || path == ["sitemapindex", "sitemap", "loc"] {
      urls.append(text.trimmingCharacters(in: .whitespacesAndNewlines))
    }
    path.removeLast()
    text = ""
  }
}
