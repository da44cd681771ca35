import CSQLite
import Foundation

/// SQLite with the tables of Apple's URL cache (`cfurl_cache_response`, `…_blob_data`, `…_receiver_data`).
///
/// Tuned: WAL, `synchronous = NORMAL`, mapped reads, prepared statements, and groups of writes in one transaction.
final class SQLitePeer: Peer {
  static let name = "SQLite"

  private let fixture: Fixture
  private let urls: [String]
  private var database: OpaquePointer?
  private var select: OpaquePointer?
  private var insertResponse: OpaquePointer?
  private var insertBlob: OpaquePointer?
  private var insertBody: OpaquePointer?
  private var memory: UnsafeMutableRawPointer

  init(folder: String, fixture: Fixture) throws {
    self.fixture = fixture
    urls = (0..<fixture.count).map { fixture.url($0) }
    memory = malloc(fixture.bodyByteCount + 8192)
    let flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX
    guard sqlite3_open_v2(folder + "/Cache.db", &database, flags, nil) == SQLITE_OK else { throw failure("open") }
    try execute(
      """
      PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA mmap_size = 17179869184; PRAGMA cache_size = -65536;
      CREATE TABLE IF NOT EXISTS cfurl_cache_response(
        entry_ID INTEGER PRIMARY KEY AUTOINCREMENT UNIQUE, version INTEGER, hash_value INTEGER, storage_policy INTEGER,
        request_key TEXT UNIQUE, time_stamp REAL NOT NULL, partition TEXT);
      CREATE INDEX IF NOT EXISTS time_stamp_index ON cfurl_cache_response(time_stamp);
      CREATE TABLE IF NOT EXISTS cfurl_cache_blob_data(
        entry_ID INTEGER PRIMARY KEY, response_object BLOB, request_object BLOB, proto_props BLOB, user_info BLOB);
      CREATE TABLE IF NOT EXISTS cfurl_cache_receiver_data(
        entry_ID INTEGER PRIMARY KEY, isDataOnFS INTEGER, receiver_data BLOB);
      """)
    select = try prepare(
      """
      SELECT b.response_object, d.receiver_data FROM cfurl_cache_response r
      JOIN cfurl_cache_blob_data b USING (entry_ID) JOIN cfurl_cache_receiver_data d USING (entry_ID)
      WHERE r.request_key = ?
      """)
    insertResponse = try prepare(
      "INSERT INTO cfurl_cache_response(version, hash_value, storage_policy, request_key, time_stamp) VALUES(0, 0, 0, ?, ?)"
    )
    insertBlob = try prepare("INSERT INTO cfurl_cache_blob_data(entry_ID, response_object) VALUES(?, ?)")
    insertBody = try prepare("INSERT INTO cfurl_cache_receiver_data VALUES(?, 0, ?)")
  }

  private func failure(_ what: String) -> BenchError {
    BenchError("SQLite: \(what): \(String(cString: sqlite3_errmsg(database)))")
  }

  private func execute(_ sql: String) throws {
    guard sqlite3_exec(database, sql, nil, nil, nil) == SQLITE_OK else { throw failure(sql) }
  }

  private func prepare(_ sql: String) throws -> OpaquePointer? {
    var statement: OpaquePointer?
    guard sqlite3_prepare_v3(database, sql, -1, UInt32(SQLITE_PREPARE_PERSISTENT), &statement, nil) == SQLITE_OK else {
      throw failure(sql)
    }
    return statement
  }

  private func bind(_ statement: OpaquePointer?, _ index: Int32, text: String) {
    var text = text
    text.withUTF8 { utf8 in
      utf8.withMemoryRebound(to: CChar.self) { characters in
        // SQLITE_TRANSIENT: SQLite copies the text, which is valid only during this call.
        _ = sqlite3_bind_text(
          statement, index, characters.baseAddress, Int32(characters.count),
          unsafeBitCast(-1, to: sqlite3_destructor_type.self))
      }
    }
  }

  private func run(_ statement: OpaquePointer?) throws {
    guard sqlite3_step(statement) == SQLITE_DONE else { throw failure("step") }
    sqlite3_reset(statement)
  }

  func store(_ range: Range<Int>) throws {
    let group = max(1, min(256, (4 << 20) / fixture.bodyByteCount))
    var start = range.lowerBound
    while start < range.upperBound {
      let end = min(start + group, range.upperBound)
      try storeGroup(start..<end)
      start = end
    }
    checkpoint()
  }

  /// Moves the WAL into the database file and syncs it.
  func checkpoint() { sqlite3_wal_checkpoint_v2(database, nil, SQLITE_CHECKPOINT_FULL, nil, nil) }

  /// Stores entries in one transaction. Their time stamps are their numbers, so that a purge can begin at any entry.
  func storeGroup(_ range: Range<Int>) throws {
    try execute("BEGIN IMMEDIATE")
    for index in range {
      bind(insertResponse, 1, text: urls[index])
      sqlite3_bind_double(insertResponse, 2, Double(index))
      try run(insertResponse)
      let row = sqlite3_last_insert_rowid(database)
      let head = fixture.head(index)
      try head.withUnsafeBytes { head in
        sqlite3_bind_int64(insertBlob, 1, row)
        sqlite3_bind_blob(insertBlob, 2, head.baseAddress, Int32(head.count), nil)
        try run(insertBlob)
      }
      try fixture.body(index).withUnsafeBytes { body in
        sqlite3_bind_int64(insertBody, 1, row)
        sqlite3_bind_blob(insertBody, 2, body.baseAddress, Int32(body.count), nil)
        try run(insertBody)
      }
    }
    try execute("COMMIT")
  }

  func read(_ picks: ArraySlice<UInt32>) -> Int {
    var sum = 0
    for pick in picks {
      bind(select, 1, text: urls[Int(pick)])
      guard sqlite3_step(select) == SQLITE_ROW else { return 0 }
      let headByteCount = Int(sqlite3_column_bytes(select, 0))
      memcpy(memory, sqlite3_column_blob(select, 0), headByteCount)
      let bodyByteCount = Int(sqlite3_column_bytes(select, 1))
      memcpy(memory + headByteCount, sqlite3_column_blob(select, 1), bodyByteCount)
      sqlite3_reset(select)
      sum &+= bodyByteCount
    }
    return sum
  }

  func body(_ index: Int) -> Data? {
    bind(select, 1, text: urls[index])
    defer { sqlite3_reset(select) }
    guard sqlite3_step(select) == SQLITE_ROW, let bytes = sqlite3_column_blob(select, 1) else { return nil }
    return Data(bytes: bytes, count: Int(sqlite3_column_bytes(select, 1)))
  }

  /// Removes entries from all three tables by time stamp, as Apple's cache does.
  func remove(where condition: String) throws {
    let rows = "(SELECT entry_ID FROM cfurl_cache_response WHERE time_stamp \(condition))"
    try execute(
      """
      BEGIN IMMEDIATE;
      DELETE FROM cfurl_cache_blob_data WHERE entry_ID IN \(rows);
      DELETE FROM cfurl_cache_receiver_data WHERE entry_ID IN \(rows);
      DELETE FROM cfurl_cache_response WHERE time_stamp \(condition);
      COMMIT;
      """)
  }

  func close() {
    for statement in [select, insertResponse, insertBlob, insertBody] { sqlite3_finalize(statement) }
    sqlite3_close_v2(database)
    free(memory)
  }
}
