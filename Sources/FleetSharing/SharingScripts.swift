import FleetRedis

/// The Lua scripts of shared responses. Redis runs each of them atomically, and refuses them when its memory is full.
enum SharingScripts {
  /// Releases or renews a fetch lock. Key: lock. 1: token; 2: milliseconds in which no request waits for this object, 0
  /// for none; 3: milliseconds to renew the lock for, instead of releasing it. Without memory it is only released.
  static let unlock = Script(
    """
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    if ARGV[3] ~= '0' then return redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
    if ARGV[2] ~= '0' and not redis.pcall('SET', KEYS[1], 'pass', 'PX', ARGV[2]).err then return 1 end
    return redis.call('DEL', KEYS[1])
    """)

  /// Stores an object unless a newer one is stored. Key: object. Arguments: key, epoch, seq, freshness, head, body,
  /// milliseconds. Returns -1 if Redis has no memory for it.
  ///
  /// The first command that writes needs memory: Redis checks its limit for that one only.
  static let store = Script(
    """
    local o = redis.pcall('HMGET', KEYS[1], 'e', 's')
    if o[1] == ARGV[2] and (tonumber(o[2]) or 0) > tonumber(ARGV[3]) then return 0 end
    local function write()
      return redis.pcall(
        'HSET', KEYS[1], 'k', ARGV[1], 'e', ARGV[2], 's', ARGV[3], 'm', ARGV[4], 'h', ARGV[5], 'b', ARGV[6])
    end
    local reply = write()
    if type(reply) == 'table' and reply.err:find('WRONGTYPE', 1, true) then
      redis.call('DEL', KEYS[1])
      reply = write()
    end
    if type(reply) == 'table' then return reply.err:find('OOM', 1, true) and -1 or reply end
    return redis.call('PEXPIRE', KEYS[1], ARGV[7])
    """)

  /// Replaces the head of a validated object. Key: object. 1, 2: epoch and seq that it had; then epoch, seq, freshness,
  /// head, milliseconds. Returns -1 if Redis has no memory for it.
  static let refresh = Script(
    """
    local o = redis.call('HMGET', KEYS[1], 'e', 's')
    if o[1] ~= ARGV[1] or o[2] ~= ARGV[2] then return 0 end
    local reply = redis.pcall('HSET', KEYS[1], 'e', ARGV[3], 's', ARGV[4], 'm', ARGV[5], 'h', ARGV[6])
    if type(reply) == 'table' then return reply.err:find('OOM', 1, true) and -1 or reply end
    return redis.call('PEXPIRE', KEYS[1], ARGV[7])
    """)
}
