import StoreContract

/// Runs operations on a store in memory, and judges each result by the ledger.
///
/// The first byte selects the configuration, and each four others are an operation.
@Sendable func storeContract(_ bytes: UnsafeRawBufferPointer) {
  guard let first = bytes.first else { return }
  let configuration = ContractRun.Configuration(isEvicting: first & 1 != 0, hasFaults: first & 2 != 0)
  do throws(ContractTest.Failure) {
    try ContractTest.run(
      ContractOperation.all(in: bytes.dropFirst()), configuration, directory: contractDirectory)
  } catch {
    fatalError("\(error)")
  }
}

private let contractDirectory = ContractTest.newDirectory()
