extension Table {
  /// The same table for a caller that has the encoded bytes of keys and values.
  public var encoded: Table<BytesCodec, BytesCodec> { Table<BytesCodec, BytesCodec>(handle: handle, serial: serial) }
}
