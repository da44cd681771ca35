/// A point in the order of removals: the sequence number of the last removal, and the number of stores that failed
/// before in this process.
///
/// Each response has a token from before its request was sent to the origin. A stored response has one from when it was
/// stored or looked up. A response is served only if no later removal covers it, whether it is in flight, in memory, in
/// the queue or on disk. The store has the present one. Zero is before every removal.
public typealias RemovalToken = UInt64
