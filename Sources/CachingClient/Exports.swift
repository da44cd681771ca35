// The interface of this module names types of these modules, so `import CachingClient` hands them on.
@_exported import CacheActivity
@_exported import CacheModel
