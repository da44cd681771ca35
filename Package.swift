// swift-tools-version: 6.2
import PackageDescription

let settings: [SwiftSetting] = [
  .swiftLanguageMode(.v6),
  .treatAllWarnings(as: .error),
]

let package = Package(
  name: "LMDBURLCache",
  products: [
    .library(name: "LMDBURLCache", targets: ["LMDBURLCache"]),
    .library(name: "CachingClient", targets: ["CachingClient"]),
    .library(name: "CachingStorage", targets: ["CachingStorage"]),
    .library(name: "CurlTransport", targets: ["CurlTransport"]),
    .library(name: "RedisTier", targets: ["RedisTier"]),
    .library(name: "ResponseStore", targets: ["ResponseStore"]),
    .library(name: "CacheModel", targets: ["CacheModel"]),
    .library(name: "CacheActivity", targets: ["CacheActivity"]),
    .library(name: "HTTPCaching", targets: ["HTTPCaching"]),
    .library(name: "LMDB", targets: ["LMDB"]),
    .executable(name: "urlcache", targets: ["urlcache"]),
  ],
  targets: [
    .systemLibrary(name: "CLMDB", pkgConfig: "lmdb", providers: [.apt(["liblmdb-dev"])]),
    .systemLibrary(name: "CXXHash", pkgConfig: "libxxhash", providers: [.apt(["libxxhash-dev"])]),
    .systemLibrary(name: "CCurl", pkgConfig: "libcurl", providers: [.apt(["libcurl4-openssl-dev"])]),
    // Without pkgConfig: hiredis.pc has a flag that the package manager refuses.
    .systemLibrary(name: "CHiredis", providers: [.apt(["libhiredis-dev"])]),
    .systemLibrary(name: "CZlib", pkgConfig: "zlib", providers: [.apt(["zlib1g-dev"])]),
    // What Swift cannot import of the kernel's interface to files.
    .systemLibrary(name: "CFiles"),
    .target(name: "SystemFiles", dependencies: ["CFiles"], swiftSettings: settings),
    .target(name: "LMDB", dependencies: ["SystemFiles", "CLMDB", "CFiles"], swiftSettings: settings),
    .target(name: "HTTPCaching", swiftSettings: settings),
    .target(name: "CacheModel", dependencies: ["HTTPCaching", "CXXHash"], swiftSettings: settings),
    .target(
      name: "CacheActivity", dependencies: ["SystemFiles", "CacheModel", "CXXHash"], swiftSettings: settings),
    .target(
      name: "ResponseStore",
      dependencies: ["SystemFiles", "LMDB", "HTTPCaching", "CacheModel", "CacheActivity"],
      swiftSettings: settings),
    .target(
      name: "CachingClient", dependencies: ["HTTPCaching", "CacheModel", "CacheActivity"],
      swiftSettings: settings),
    .target(
      name: "CachingStorage",
      dependencies: [
        "CachingClient", "HTTPCaching", "CacheModel", "CacheActivity", "ResponseStore", "SystemFiles",
      ],
      swiftSettings: settings),
    .target(
      name: "CurlTransport", dependencies: ["CachingClient", "CacheModel", "HTTPCaching", "CCurl", "CZlib"],
      swiftSettings: settings),
    .target(
      name: "FleetRedis", dependencies: ["CacheModel", "CHiredis", "CXXHash"], swiftSettings: settings),
    .target(
      name: "FleetSharing",
      dependencies: [
        "CachingClient", "HTTPCaching", "CacheModel", "CacheActivity", "ResponseStore", "FleetRedis", "CXXHash",
      ],
      swiftSettings: settings),
    .target(
      name: "RedisTier",
      dependencies: [
        "CachingClient", "HTTPCaching", "CacheModel", "CacheActivity", "ResponseStore", "SystemFiles", "FleetRedis",
        "FleetSharing",
      ],
      swiftSettings: settings),
    .target(
      name: "LMDBURLCache",
      dependencies: [
        "CachingClient", "CachingStorage", "CurlTransport", "HTTPCaching", "CacheModel", "CacheActivity",
        "ResponseStore",
        "LMDB", "SystemFiles",
      ],
      swiftSettings: settings),
    .executableTarget(
      name: "urlcache",
      dependencies: [
        "LMDBURLCache", "RedisTier", "CachingClient", "CurlTransport", "ResponseStore", "CacheActivity", "CacheModel",
        "HTTPCaching", "LoopbackOrigin",
      ],
      swiftSettings: settings),
    // An HTTP/1.1 origin on loopback for the demo and the tests. It can send any malformed response, which no
    // ready-made server does.
    .target(name: "LoopbackOrigin", swiftSettings: settings),
    .testTarget(name: "LMDBTests", dependencies: ["LMDB", "SystemFiles", "CLMDB"], swiftSettings: settings),
    .testTarget(
      name: "LoopbackOriginTests", dependencies: ["LoopbackOrigin"], swiftSettings: settings),
    .testTarget(name: "HTTPCachingTests", dependencies: ["HTTPCaching"], swiftSettings: settings),
    // Simulates disk errors: replaces functions of the C library in the test process.
    .target(name: "CDiskFaults", path: "Tests/CDiskFaults"),
    // What a store must return: the ledger that judges it, and a test of random operations on its public interface.
    .target(
      name: "StoreContract", dependencies: ["ResponseStore", "HTTPCaching", "CDiskFaults"], path: "Tests/StoreContract",
      swiftSettings: settings),
    // The targets of Scripts/fuzz, whose seeds a test uses.
    .target(
      name: "Fuzz", dependencies: ["ResponseStore", "HTTPCaching", "StoreContract"], path: "Tests/Fuzz",
      // The entry point of libFuzzer.
      exclude: ["Corpus", "Entry.swift", "RESULTS.md"], swiftSettings: settings),
    .testTarget(
      name: "ResponseStoreTests",
      dependencies: [
        "ResponseStore", "CacheModel", "CacheActivity", "HTTPCaching", "LMDB", "SystemFiles", "CXXHash", "CDiskFaults",
        "StoreContract", "Fuzz",
      ],
      // Directories in released storage formats, which the tests copy.
      exclude: ["Golden"], swiftSettings: settings),
    .testTarget(
      name: "CachingClientTests",
      dependencies: [
        "CachingClient", "CachingStorage", "CurlTransport", "CacheModel", "CacheActivity", "ResponseStore",
        "HTTPCaching",
        "LoopbackOrigin",
      ],
      swiftSettings: settings),
    // Simulates slow name servers: replaces functions of the C library in the test process.
    .target(name: "CSlowNames", path: "Tests/CSlowNames"),
    .testTarget(
      name: "CurlTransportTests",
      dependencies: [
        "CurlTransport", "CachingClient", "CachingStorage", "CacheModel", "HTTPCaching", "LoopbackOrigin", "CCurl",
        "CZlib", "CSlowNames",
      ],
      swiftSettings: settings),
    .testTarget(
      name: "RedisTierTests",
      dependencies: [
        "RedisTier", "FleetRedis", "FleetSharing", "LMDBURLCache", "CachingClient", "CurlTransport", "HTTPCaching",
        "CacheModel", "CacheActivity", "ResponseStore", "SystemFiles", "LoopbackOrigin", "urlcache",
      ],
      swiftSettings: settings),
    .testTarget(
      name: "LMDBURLCacheTests",
      dependencies: [
        "LMDBURLCache", "CachingClient", "CurlTransport", "CacheModel", "CacheActivity", "ResponseStore", "HTTPCaching",
        "LMDB", "SystemFiles", "LoopbackOrigin", "CDiskFaults",
      ],
      swiftSettings: settings),
    // Files that import LMDBURLCache alone, as those of apps that switch this feature on.
    .testTarget(
      name: "SingleImportTests",
      dependencies: ["LMDBURLCache", "RedisTier", "LoopbackOrigin"],
      swiftSettings: settings + [.enableUpcomingFeature("MemberImportVisibility")]),
    .testTarget(
      name: "URLCacheToolTests",
      dependencies: [
        "urlcache", "LMDBURLCache", "CacheModel", "CacheActivity", "ResponseStore", "HTTPCaching", "LMDB",
        "SystemFiles",
        "LoopbackOrigin",
      ],
      swiftSettings: settings),
  ]
)

// Tests a store under kills, power failures, corrupt files and load. Scripts/reliability builds it, and sets the
// variable. Other builds do not wait for it.
if Context.environment["LMDBURLCACHE_RELIABILITY"] != nil {
  package.targets.append(
    .executableTarget(
      name: "reliability",
      dependencies: [
        "LMDBURLCache", "CachingClient", "CachingStorage", "CacheModel", "CacheActivity", "RedisTier", "ResponseStore",
        "HTTPCaching", "LMDB", "LoopbackOrigin", "StoreContract", "CXXHash",
      ],
      path: "Tests/Reliability/Sources/reliability", swiftSettings: settings))
}
