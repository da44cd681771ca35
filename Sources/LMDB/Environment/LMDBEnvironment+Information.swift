internal import CLMDB
internal import Glibc

extension LMDBEnvironment {
  /// Properties of an environment at one moment.
  public struct Information: Sendable, Hashable {
    /// The size of the map in bytes, which limits the size of the data file.
    public let mapByteCount: Int

    /// The number of the last page that was ever used. Page numbers start at 0, so the file has one page more.
    public let lastPageNumber: Int

    /// The number of the last commit.
    public let lastTransactionID: UInt64

    /// The number of simultaneous read transactions that the lock file supports.
    public let maximumReaders: Int

    /// The maximum number of reader slots that were in use at once.
    public let usedReaders: Int
  }

  /// The present properties of the environment. Costs some ten nanoseconds. `mdb_env_info`.
  public var information: Information {
    let information = rawInformation
    return Information(
      mapByteCount: information.me_mapsize, lastPageNumber: information.me_last_pgno,
      lastTransactionID: UInt64(information.me_last_txnid), maximumReaders: Int(information.me_maxreaders),
      usedReaders: Int(information.me_numreaders))
  }

  /// The number of the last commit by any process. Costs some ten nanoseconds. `mdb_env_info`.
  public var lastTransactionID: UInt64 {
    UInt64(rawInformation.me_last_txnid)
  }

  private var rawInformation: MDB_envinfo {
    var information = MDB_envinfo()
    // mdb_env_info reads the map, which must not move during the call. In a forked child no thread moves it.
    guard !isForked else {
      if !isClosed.load(ordering: .relaxed) { mdb_env_info(pointer, &information) }
      return information
    }
    while true {
      do throws(LMDBError) {
        let slot = try enter("mdb_env_info")
        defer { slots.release(slot) }
        mdb_env_info(pointer, &information)
        return information
      } catch LMDBError.Code.readersFull {
        // Within a transaction of this thread, the map does not move.
        if isInTransaction {
          mdb_env_info(pointer, &information)
          return information
        }
        usleep(100)
      } catch {
        // The environment was closed, or the map could not be mapped again.
        return information
      }
    }
  }
}
