// swift-tools-version: 6.2
import PackageDescription

let settings: [SwiftSetting] = [.swiftLanguageMode(.v6), .treatAllWarnings(as: .error)]

let package = Package(
  name: "Benchmarks",
  dependencies: [.package(name: "LMDBURLCache", path: "..")],
  targets: [
    // What the decision on a hit costs; fails if it allocates more than it may.
    .executableTarget(
      name: "Decision",
      dependencies: ["CAllocationCount", .product(name: "HTTPCaching", package: "LMDBURLCache")],
      swiftSettings: settings),
    // The peers' libraries; `Scripts/bench` installs them.
    .systemLibrary(name: "CSQLite", pkgConfig: "sqlite3", providers: [.apt(["libsqlite3-dev"])]),
    .systemLibrary(name: "CRocksDB", pkgConfig: "rocksdb", providers: [.apt(["librocksdb-dev"])]),
    .systemLibrary(name: "CHiredis", providers: [.apt(["libhiredis-dev"])]),
    // The limits: loops in C on liblmdb.
    .target(name: "CRawLMDB", linkerSettings: [.linkedLibrary("lmdb")]),
    // Everything side by side; see `Scripts/bench`.
    .executableTarget(
      name: "Bench",
      dependencies: [
        .product(name: "ResponseStore", package: "LMDBURLCache"),
        .product(name: "LMDBURLCache", package: "LMDBURLCache"),
        .product(name: "HTTPCaching", package: "LMDBURLCache"),
        "CSQLite", "CRocksDB", "CHiredis", "CRawLMDB",
      ],
      swiftSettings: settings),
    // Counts what the hot calls allocate, and how many instructions they take.
    .target(name: "CAllocationCount"),
    .executableTarget(
      name: "Guard",
      dependencies: [
        .product(name: "ResponseStore", package: "LMDBURLCache"),
        .product(name: "LMDBURLCache", package: "LMDBURLCache"),
        .product(name: "HTTPCaching", package: "LMDBURLCache"),
        "CAllocationCount",
      ],
      swiftSettings: settings),
    // Replays a trace of requests through the types by which the store chooses its victims: they are compiled in by symbolic links.
    .executableTarget(
      name: "EvictionReplay", dependencies: [.product(name: "ResponseStore", package: "LMDBURLCache")],
      swiftSettings: settings),
    // The index outside LMDB by itself: its folder is compiled in by a symbolic link.
    .executableTarget(
      name: "IndexBench", dependencies: [.product(name: "LMDB", package: "LMDBURLCache"), "CRawLMDB"],
      swiftSettings: settings),
  ]
)
