import CachingClient
import FoundationEssentials
import ResponseStore

extension ResponseBodyStream {
  /// Creates a body that reads a range of a stored body on demand, in pieces of 256 KiB.
  ///
  /// It can be read any number of times. Reading throws ``/CachingClient/CachingClientError/storedBodyLost`` if the
  /// response is evicted, removed or replaced before the end of the range.
  init(_ stored: StoredBody, in range: Range<Int>) {
    self.init(start: {
      var rest = range
      return {
        guard !rest.isEmpty else { return nil }
        try Task.checkCancellation()
        let piece = rest.prefix(256 << 10)
        guard let chunk = await onBlockingThread({ stored.read(piece) }) else {
          rest = rest.suffix(0)
          throw CachingClientError.storedBodyLost
        }
        rest = rest.dropFirst(piece.count)
        return chunk
      }
    })
  }
}
