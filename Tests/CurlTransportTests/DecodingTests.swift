import CZlib
import CurlTransport
import Dispatch
import FoundationEssentials
import HTTPCaching
import LoopbackOrigin
import Synchronization
import Testing

/// Tests of correctly and incorrectly encoded content.
@Suite("Decoding of the curl transport", .timeLimit(.minutes(1)))
struct DecodingTests {
  private static let text = String(repeating: "hello ", count: 20_000)

  private func outcome(_ content: Data, _ coding: String, status: Int = 200, isDecoded: Bool = true) async throws
    -> Outcome
  {
    var outcome: Outcome?
    try await withOrigin { _ in
      Reply(status, [("Content-Encoding", coding)], body: content)
    } _: { origin in
      outcome = await directTransport { $0.decodesContent = isDecoded }.outcome(origin.url())
    }
    return try #require(outcome)
  }

  @Test("gzip and deflate are decoded, and the response says so")
  func codings() async throws {
    let hello = Outcome.complete(200, Self.text)
    for coding in ["gzip", "GZip", "x-gzip"] { #expect(try await outcome(encoded(Self.text, .gzip), coding) == hello) }
    #expect(try await outcome(encoded(Self.text, .zlib), "deflate") == hello)
    #expect(try await outcome(encoded(Self.text, .bare), "deflate") == hello)
    #expect(try await outcome(encoded("", .gzip), "gzip") == .complete(200, ""))
    #expect(try await outcome(Data(), "gzip") == .complete(200, ""))
    let members = encoded("hello, ", .gzip) + encoded("", .gzip) + encoded("world", .gzip)
    #expect(try await outcome(members, "gzip") == .complete(200, "hello, world"))
    try await withOrigin { _ in
      Reply(200, [("Content-Encoding", "gzip")], body: encoded("hello", .gzip))
    } _: { origin in
      let response = try await directTransport().get(origin.url())
      #expect(response.isContentDecoded)
      #expect(response.head.fields["Content-Encoding"] == "gzip")
    }
  }

  /// Runs tasks on one thread.
  private final class OneThread: TaskExecutor {
    private let queue = DispatchQueue(label: "one thread")

    func enqueue(_ job: consuming ExecutorJob) {
      let job = UnownedJob(job)
      queue.async { job.runSynchronously(on: self.asUnownedTaskExecutor()) }
    }
  }

  private final class Counts: Sendable {
    let decoded = Atomic(0)
    let maximum = Atomic(0)
    let isOver = Atomic(false)
  }

  @Test("While content that expands much is decoded, other tasks can use the thread")
  func otherTasks() async throws {
    let byteCount = 15 << 20
    let content = encoded(String(repeating: "x", count: byteCount), .gzip)
    try await withOrigin { _ in
      Reply(200, [("Content-Encoding", "gzip")], body: content)
    } _: { origin in
      let (counts, thread) = (Counts(), OneThread())
      let other = Task(executorPreference: thread) {
        while !counts.isOver.load(ordering: .relaxed) {
          counts.maximum.max(counts.decoded.exchange(0, ordering: .relaxed), ordering: .relaxed)
          await Task.yield()
        }
      }
      let reader = Task(executorPreference: thread) {
        for try await piece in try await directTransport().get(origin.url()).body {
          counts.decoded.add(piece.count, ordering: .relaxed)
        }
      }
      try await reader.value
      counts.isOver.store(true, ordering: .relaxed)
      await other.value
      #expect(counts.maximum.load(ordering: .relaxed) + counts.decoded.load(ordering: .relaxed) < byteCount / 2)
    }
  }

  @Test(
    "Content with other codings is delivered unchanged",
    arguments: ["br", "made-up", "identity", "gzip, gzip", "gzip, br"])
  func otherCodings(_ coding: String) async throws {
    try await withOrigin { _ in
      Reply(200, [("Content-Encoding", coding)], "hello")
    } _: { origin in
      let response = try await directTransport().get(origin.url())
      #expect(!response.isContentDecoded)
      #expect(response.head.fields["Content-Encoding"] == coding)
      #expect(try await response.text() == "hello")
    }
  }

  @Test("Content with codings on two lines is delivered unchanged")
  func codingsOnTwoLines() async throws {
    let fields = [("Content-Encoding", "gzip"), ("Content-Encoding", "gzip")]
    try await withOrigin { _ in
      Reply(200, fields, "hello")
    } _: { origin in
      #expect(await directTransport().outcome(origin.url()) == .complete(200, "hello"))
    }
  }

  @Test("A 206 response, and content with decoding turned off, are delivered unchanged")
  func undecoded() async throws {
    let content = encoded("hello", .gzip)
    try await withOrigin { request in
      Reply(request.path == "/part" ? 206 : 200, [("Content-Encoding", "gzip")], body: content)
    } _: { origin in
      let part = try await directTransport().get(origin.url("/part"))
      #expect(!part.isContentDecoded)
      #expect(try await part.data() == content)
      let whole = try await directTransport { $0.decodesContent = false }.get(origin.url("/whole"))
      #expect(!whole.isContentDecoded)
      #expect(try await whole.data() == content)
    }
  }

  @Test("Encoded content that ends early is an error, although its framing is correct", arguments: [1, 4, 8, 12, 100])
  func cut(_ missing: Int) async throws {
    let content = encoded(Self.text, .gzip)
    #expect(try await outcome(content.dropLast(missing), "gzip") == .failure(.undecodableContent))
    let bare = encoded(Self.text, .bare)
    #expect(try await outcome(bare.dropLast(missing), "deflate") == .failure(.undecodableContent))
  }

  @Test("Encoded content is also checked when it arrives in chunks")
  func cutInChunks() async throws {
    let content = encoded(Self.text, .gzip)
    for missing in [0, 5] {
      let reply = Reply(200, [("Content-Encoding", "gzip")], body: content.dropLast(missing)).chunked(byteCount: 100)
      try await withOrigin { _ in
        reply
      } _: { origin in
        let expected = missing == 0 ? Outcome.complete(200, Self.text) : .failure(.undecodableContent)
        #expect(await directTransport().outcome(origin.url()) == expected)
      }
    }
  }

  @Test("Content that does not match its coding is an error")
  func wrongCoding() async throws {
    let failure = Outcome.failure(.undecodableContent)
    #expect(try await outcome(Data("hello".utf8), "gzip") == failure)
    #expect(try await outcome(Data("hello, this is text".utf8), "deflate") == failure)
    #expect(try await outcome(Data([0x78]), "deflate") == failure)
    #expect(try await outcome(encoded("hello", .gzip) + Data("tail".utf8), "gzip") == failure)
    #expect(try await outcome(encoded("hello", .zlib) + Data("tail".utf8), "deflate") == failure)
    var corrupt = encoded(Self.text, .gzip)
    corrupt[corrupt.count - 6] ^= 1
    #expect(try await outcome(corrupt, "gzip") == failure)
  }

  @Test("Content that expands beyond the maximum factor is an error")
  func bomb() async throws {
    let bomb = encoded(String(repeating: "\0", count: 64 << 20), .gzip)
    try await withOrigin { _ in
      Reply(200, [("Content-Encoding", "gzip")], body: bomb)
    } _: { origin in
      #expect(await directTransport().outcome(origin.url()) == .failure(.excessiveExpansion))
      let trusting = directTransport { $0.maximumExpansionFactor = 2_000 }
      #expect(try await trusting.get(origin.url()).data().count == 64 << 20)
      // Reading in pieces uses little memory, because each piece is bounded.
      // The first piece is everything that was decoded so far: up to 256 KiB, and one piece of the decoder.
      for try await piece in try await trusting.get(origin.url()).body {
        #expect(piece.count <= (256 + 64) << 10)
      }
    }
  }

  @Test("The decoded content does not depend on the size of the pieces", arguments: [1, 2, 3, 7, 64, 1000])
  func pieces(_ byteCount: Int) throws {
    for format in [Format.gzip, .zlib, .bare] {
      var decoder = ContentDecoder(format == .gzip ? .gzip : .deflate, maximumExpansionFactor: 200)
      var rest = encoded(Self.text, format)
      var decoded = Data()
      while !rest.isEmpty {
        decoder.append(rest.prefix(byteCount))
        rest = rest.dropFirst(byteCount)
        while let piece = try decoder.next() { decoded += piece }
      }
      try decoder.checkEnd()
      #expect(String(decoding: decoded, as: UTF8.self) == Self.text)
    }
  }
}

/// The framing of compressed data, as zlib's `windowBits`.
enum Format: CInt {
  case gzip = 31
  case zlib = 15
  case bare = -15
}

func encoded(_ text: String, _ format: Format) -> Data {
  var stream = z_stream()
  let result = deflateInit2_(
    &stream, 9, Z_DEFLATED, format.rawValue, 8, Z_DEFAULT_STRATEGY, ZLIB_VERSION, CInt(MemoryLayout<z_stream>.size))
  precondition(result == Z_OK)
  defer { deflateEnd(&stream) }
  var input = Array(text.utf8)
  var output = [UInt8](repeating: 0, count: Int(deflateBound(&stream, uLong(input.count))))
  let count = input.withUnsafeMutableBufferPointer { source in
    output.withUnsafeMutableBufferPointer { target in
      stream.next_in = source.baseAddress
      stream.avail_in = uInt(source.count)
      stream.next_out = target.baseAddress
      stream.avail_out = uInt(target.count)
      precondition(deflate(&stream, Z_FINISH) == Z_STREAM_END)
      return target.count - Int(stream.avail_out)
    }
  }
  return Data(output[..<count])
}
