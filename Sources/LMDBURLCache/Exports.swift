// The interface of this module names types of these modules. Handing them on makes `import LMDBURLCache` suffice, also
// with the upcoming feature MemberImportVisibility.
@_exported import CacheActivity
@_exported import CacheModel
@_exported import CachingClient
@_exported import CachingStorage
@_exported import CurlTransport
@_exported import Foundation
@_exported import FoundationNetworking
@_exported import HTTPCaching
@_exported import ResponseStore

@_exported import struct LMDB.LMDBError
