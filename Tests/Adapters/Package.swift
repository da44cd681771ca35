// swift-tools-version: 6.2
import PackageDescription

let settings: [SwiftSetting] = [.swiftLanguageMode(.v6), .treatAllWarnings(as: .error)]

/// A target with the name of a module from another package, and the declarations of it that the adapters use.
func stub(_ name: String, _ dependencies: [Target.Dependency] = []) -> Target {
  .target(name: name, dependencies: dependencies, path: "Stubs/\(name)", swiftSettings: settings)
}

/// A program that uses only one module; Scripts/check-linkage checks the libraries that it needs.
func program(with module: String) -> Target {
  .executableTarget(
    name: "With\(module)", dependencies: [.product(name: module, package: "LMDBURLCache")],
    path: "Linkage/With\(module)", swiftSettings: settings)
}

/// The modules that the code of the articles uses.
let used: [Target.Dependency] = [
  "HTTPTypes", "OpenAPIRuntime", "OpenAPIURLSession", "NIOCore", "NIOHTTP1", "AsyncHTTPClient", "Logging", "Metrics",
  "ServiceLifecycle", .product(name: "LMDBURLCache", package: "LMDBURLCache"),
  // For Scripts/check-examples.
  .product(name: "RedisTier", package: "LMDBURLCache"),
  .product(name: "CachingStorage", package: "LMDBURLCache"),
  .product(name: "HTTPCaching", package: "LMDBURLCache"),
]

let package = Package(
  name: "Adapters",
  dependencies: [.package(name: "LMDBURLCache", path: "../..")],
  targets: [
    stub("HTTPTypes"),
    stub("OpenAPIRuntime", ["HTTPTypes"]),
    stub("OpenAPIURLSession", ["HTTPTypes", "OpenAPIRuntime"]),
    stub("Hummingbird"),
    stub("Vapor"),
    stub("NIOCore"),
    stub("NIOHTTP1"),
    stub("AsyncHTTPClient", ["NIOCore", "NIOHTTP1"]),
    stub("Logging"),
    stub("Metrics"),
    stub("ServiceLifecycle", ["Logging"]),
    // The code of the articles on other packages, one file for each example.
    .target(
      name: "Adapters", dependencies: used, path: "Adapters", swiftSettings: settings),
    // The code of the article on developing on a Mac, with its condition.
    .target(
      name: "Conditional",
      dependencies: [.product(name: "LMDBURLCache", package: "LMDBURLCache", condition: .when(platforms: [.linux]))],
      path: "Conditional", swiftSettings: settings),
    // A symbolic link to LoopbackOrigin, which is no product. Two modules of one name would clash.
    .target(name: "Origin", path: "Origin", swiftSettings: settings),
    // Contains the code of the articles through symbolic links, because its declarations are internal.
    .testTarget(
      name: "AdaptersTests",
      dependencies: used + ["Origin", .product(name: "CurlTransport", package: "LMDBURLCache")],
      path: "AdaptersTests", swiftSettings: settings),
    // Imports this package with others, whose names must not be ambiguous.
    .testTarget(
      name: "NameTests",
      dependencies: [
        "HTTPTypes", "Hummingbird", "OpenAPIURLSession", "Vapor",
        .product(name: "LMDBURLCache", package: "LMDBURLCache"),
        .product(name: "LMDB", package: "LMDBURLCache"),
      ],
      path: "NameTests", swiftSettings: settings),
    program(with: "HTTPCaching"),
    program(with: "CurlTransport"),
    program(with: "LMDBURLCache"),
  ]
)
