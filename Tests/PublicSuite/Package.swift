// swift-tools-version: 6.2
import PackageDescription

let settings: [SwiftSetting] = [.swiftLanguageMode(.v6), .treatAllWarnings(as: .error)]

let package = Package(
  name: "PublicSuite",
  dependencies: [.package(name: "LMDBURLCache", path: "../..")],
  targets: [
    // A caching reverse proxy for the public test suite for HTTP caches. Run it with Scripts/cache-tests.
    .executableTarget(
      name: "suite-proxy",
      dependencies: [
        "Origin",
        .product(name: "LMDBURLCache", package: "LMDBURLCache"),
        .product(name: "CachingStorage", package: "LMDBURLCache"),
        .product(name: "CurlTransport", package: "LMDBURLCache"),
        .product(name: "HTTPCaching", package: "LMDBURLCache"),
      ],
      swiftSettings: settings),
    // The scripted origin of the package's tests, through a symbolic link, because it is not a product of the package.
    // The proxy uses it as its server.
    .target(name: "Origin", swiftSettings: settings),
  ]
)
