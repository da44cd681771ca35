// The interface of this module names types of these modules, so `import CachingStorage` hands them on.
@_exported import CacheActivity
@_exported import CacheModel
@_exported import CachingClient
@_exported import HTTPCaching
@_exported import ResponseStore
