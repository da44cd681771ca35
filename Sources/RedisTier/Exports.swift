// The interface of this module names a type of this one, so `import RedisTier` hands it on.
@_exported import FleetRedis
