// swift-tools-version: 6.2
import PackageDescription

let settings: [SwiftSetting] = [.swiftLanguageMode(.v6), .treatAllWarnings(as: .error)]

let package = Package(
  name: "Reliability",
  dependencies: [.package(name: "LMDBURLCache", path: "../..")],
  targets: [
    // Kills, cuts, damages and crowds a store, and looks whether it keeps its word. Run it by Scripts/reliability. The folder
    // Index is the store's own, compiled with steps at which a process can be killed.
    .executableTarget(
      name: "reliability",
      dependencies: [
        "Origin",
        .product(name: "LMDBURLCache", package: "LMDBURLCache"),
        .product(name: "CachingClient", package: "LMDBURLCache"),
        .product(name: "ResponseStore", package: "LMDBURLCache"),
        .product(name: "HTTPCaching", package: "LMDBURLCache"),
        .product(name: "LMDB", package: "LMDBURLCache"),
      ],
      swiftSettings: settings + [.define("INDEX_STEPS")]),
    // The scripted origin of the package's own tests, by a symbolic link: it is no product of the package.
    .target(name: "Origin", swiftSettings: settings),
  ]
)
