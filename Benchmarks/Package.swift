// swift-tools-version: 6.2
import PackageDescription

let settings: [SwiftSetting] = [.swiftLanguageMode(.v6), .treatAllWarnings(as: .error)]

let package = Package(
  name: "Benchmarks",
  dependencies: [.package(name: "LMDBURLCache", path: "..")],
  targets: [
    // Time and allocations of the decision on a hit. Fails if it allocates more than allowed.
    .executableTarget(
      name: "Decision",
      dependencies: ["CAllocationCount", .product(name: "HTTPCaching", package: "LMDBURLCache")],
      swiftSettings: settings),
    // Libraries of the other implementations, which `Scripts/bench` installs.
    .systemLibrary(name: "CSQLite", pkgConfig: "sqlite3", providers: [.apt(["libsqlite3-dev"])]),
    .systemLibrary(name: "CRocksDB", pkgConfig: "rocksdb", providers: [.apt(["librocksdb-dev"])]),
    .systemLibrary(name: "CRawHiredis", providers: [.apt(["libhiredis-dev"])]),
    // The C baselines: programs on liblmdb and libcurl alone.
    .target(name: "CRawLMDB", linkerSettings: [.linkedLibrary("lmdb")]),
    .target(name: "CRawCurl", linkerSettings: [.linkedLibrary("curl")]),
    // The benchmark suites; see `Scripts/bench`.
    .executableTarget(
      name: "Bench",
      dependencies: [
        .product(name: "ResponseStore", package: "LMDBURLCache"),
        .product(name: "LMDBURLCache", package: "LMDBURLCache"),
        .product(name: "HTTPCaching", package: "LMDBURLCache"),
        .product(name: "CurlTransport", package: "LMDBURLCache"),
        .product(name: "CachingClient", package: "LMDBURLCache"),
        .product(name: "CachingStorage", package: "LMDBURLCache"),
        .product(name: "RedisTier", package: "LMDBURLCache"),
        "Origin", "CSQLite", "CRocksDB", "CRawHiredis", "CRawLMDB", "CRawCurl",
      ],
      swiftSettings: settings),
    // The scripted origin of the package's tests, through a symbolic link, because it is not a product of the package.
    .target(name: "Origin", swiftSettings: settings),
    // Counts the allocations and instructions of the hot calls.
    .target(name: "CAllocationCount"),
    .executableTarget(
      name: "HotPathBudget",
      dependencies: [
        .product(name: "LMDBURLCache", package: "LMDBURLCache"),
        .product(name: "HTTPCaching", package: "LMDBURLCache"),
        .product(name: "RedisTier", package: "LMDBURLCache"),
        .product(name: "CachingStorage", package: "LMDBURLCache"),
        .product(name: "CurlTransport", package: "LMDBURLCache"),
        "CAllocationCount",
      ],
      swiftSettings: settings),
    // Replays request traces through stores on disk.
    .executableTarget(
      name: "EvictionReplay",
      dependencies: [
        .product(name: "ResponseStore", package: "LMDBURLCache"),
        .product(name: "HTTPCaching", package: "LMDBURLCache"),
      ],
      swiftSettings: settings),
  ]
)
