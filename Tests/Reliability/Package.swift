// swift-tools-version: 6.2
import PackageDescription

let settings: [SwiftSetting] = [.swiftLanguageMode(.v6), .treatAllWarnings(as: .error)]

let package = Package(
  name: "Reliability",
  dependencies: [.package(name: "LMDBURLCache", path: "../..")],
  targets: [
    // Tests a store under kills, power failures, corrupt files and load. Run it with Scripts/reliability.
    // The folder Index and FileDescriptor.swift are symbolic links to the store's own sources. INDEX_STEPS compiles the
    // steps at which a process can be killed into them.
    .executableTarget(
      name: "reliability",
      dependencies: [
        "Origin",
        .product(name: "LMDBURLCache", package: "LMDBURLCache"),
        .product(name: "CachingClient", package: "LMDBURLCache"),
        .product(name: "RedisTier", package: "LMDBURLCache"),
        .product(name: "ResponseStore", package: "LMDBURLCache"),
        .product(name: "HTTPCaching", package: "LMDBURLCache"),
        .product(name: "LMDB", package: "LMDBURLCache"),
      ],
      swiftSettings: settings + [.define("INDEX_STEPS"), .enableUpcomingFeature("InternalImportsByDefault")]),
    // The scripted origin of the package's tests, through a symbolic link, because it is not a product of the package.
    .target(name: "Origin", swiftSettings: settings),
  ]
)
