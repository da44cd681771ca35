import FleetRedis

/// The Lua scripts of the fleet's protocol. Redis runs each of them atomically, and none reads a clock to decide.
///
/// Redis runs the control scripts also when its memory is full (`allow-oom`): what they store is bounded, and without
/// them no machine has a lease.
///
/// Keys of the control scripts: `ctl log acks seen wait`. Their first arguments: the connection's `run_id`, the ID for
/// a fresh epoch, and the prefix of `done:`.
enum FleetScripts {
  /// The replication ID. It changes when a server that was a replica accepts writes again, maybe with older data.
  private static let replicationID = "(redis.call('INFO', 'replication'):match('master_replid:(%x+)') or '')"

  /// Checks that the user may run the commands of the control scripts on their keys, and those that are sent without a
  /// script: those of the follower, of shared responses, and of calls that wait for a purge.
  ///
  /// This comes before everything else, in each script, because permissions can change at any time: a command that
  /// fails between two others would leave keys that do not fit together, and that would begin a new epoch.
  private static let controlPermissions = """
    #!lua flags=allow-oom
    local ctl, log, acks, seen, wait = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

    """
    + permissionCheck(
      """
      {ctl, 0, 'unlink', 'get', 'del', 'pttl'}, {ctl, 1, 'hmget', 'hdel', 'set', 'pexpire'}, {ctl, 2, 'hset', 'hincrby'},
      {log, 0, 'xlen', 'unlink'}, {log, 1, 'xread', before = 'STREAMS'}, {log, 2, 'xrange', 'xtrim'}, {log, 3, 'xadd'},
      {acks, 0, 'zcard', 'unlink'}, {acks, 1, 'zrem'}, {acks, 2, 'zadd', 'zrange', 'zrangebyscore'},
      {seen, 0, 'hlen', 'hgetall', 'unlink'}, {seen, 1, 'hget', 'hdel'}, {seen, 2, 'hincrby'},
      {wait, 0, 'zcard', 'unlink'}, {wait, 1, 'zrem'}, {wait, 2, 'zadd', 'zrangebyscore'},
      {ARGV[3], 1, 'rpush', 'blpop', 'pexpire'}, {false, 0, 'time', 'info'}
      """)

  /// Checks that the user may run commands. Redis's own error within a script does not always name the command.
  ///
  /// - Parameter commands: Lists in Lua, each of a key, or false for none, the minimum number of arguments after it,
  ///   names of commands, and the word before the key, if any. Some versions of Redis refuse to check a command with
  ///   fewer arguments.
  private static func permissionCheck(_ commands: String) -> String {
    """
    if not redis.acl_check_cmd then return redis.error_reply('FEATURE redis.acl_check_cmd in scripts, since Redis 7.0') end
    for _, allowed in ipairs({\(commands)}) do
      local words = {'', allowed.before}
      words[#words + 1] = allowed[1] or nil
      for _ = 1, allowed[2] do words[#words + 1] = '0' end
      for i = 3, #allowed do
        words[1] = allowed[i]
        local isKnown, isAllowed = pcall(redis.acl_check_cmd, unpack(words))
        if not isKnown then return redis.error_reply("FEATURE the command '" .. allowed[i] .. "'") end
        if not isAllowed then
          return redis.error_reply("NOPERM this user may not run the '" .. allowed[i] .. "' command on the fleet's keys")
        end
      end
    end

    """
  }

  /// Checks that the control keys fit together; otherwise, also if one has another type, starts a new epoch. Any other
  /// error ends the script.
  private static let head =
    controlPermissions + """
      local function reading(command, ...)
        local reply = redis.pcall(command, ...)
        if type(reply) ~= 'table' or not reply.err then return reply end
        if not reply.err:find('WRONGTYPE', 1, true) then error(reply) end
      end
      local c = reading('HMGET', ctl, 'epoch', 'run', 'seq', 'floor', 'nodes', 'mature') or {}
      local function number(text) return tonumber(text or 0) or 0 / 0 end
      local epoch, seq, floor, nodes, mature = c[1], number(c[3]), number(c[4]), number(c[5]), c[6] == '1'
      local function size(command, key) return reading(command, key) or -2 end
      local run = ARGV[1] .. \(replicationID)
      if not (epoch and epoch:find('@')) or c[2] ~= run or floor < 0
        or size('XLEN', log) ~= seq - floor or size('ZCARD', acks) ~= nodes or size('HLEN', seen) ~= nodes
        or size('ZCARD', wait) < 0 then
        redis.call('UNLINK', ctl, log, acks, seen, wait)
        epoch, seq, floor, nodes, mature = ARGV[2], 0, 0, 0, false
        redis.call('HSET', ctl, 'epoch', epoch, 'run', run, 'seq', 0, 'floor', 0, 'nodes', 0, 'mature', 0)
      elseif epoch:match('@.+$') ~= ARGV[2]:match('@.+$') then
        return redis.error_reply('LEASE this fleet has another lease or secret')
      end
      local function purge_at(n)
        local e = redis.call('XRANGE', log, n .. '-0', n .. '-0')[1]
        return e and e[2][2]
      end
      local function wake()
        local low = redis.call('ZRANGE', acks, 0, 0, 'WITHSCORES')[2] or '+inf'
        for _, id in ipairs(redis.call('ZRANGEBYSCORE', wait, '-inf', low)) do
          redis.call('ZREM', wait, id)
          redis.call('RPUSH', ARGV[3] .. id, 1)
          redis.call('PEXPIRE', ARGV[3] .. id, 10000)
        end
      end
      local function drop(node)
        if redis.call('ZREM', acks, node) == 1 then
          redis.call('HDEL', seen, node)
          redis.call('HDEL', ctl, 'at:' .. node)
          redis.call('HINCRBY', ctl, 'nodes', -1)
        end
      end
      local function sweep(first)
        for i = first, #ARGV, 2 do
          if redis.call('HGET', seen, ARGV[i]) == ARGV[i + 1] then drop(ARGV[i]) end
        end
        wake()
      end

      """

  /// Renews a node's registration. 4: node; 5: its epoch; 6: its cursor; 7: the purge at the cursor; 8: the maximum
  /// number of entries; 9: '1' if the node has known its epoch for longer than W; 10: the name of its host. The time
  /// and the host's name are only for ``status``. Replies, last, the number up to which all nodes have acknowledged.
  static let renew = Script(
    head + """
      local node, cursor, state, entries = ARGV[4], tonumber(ARGV[6]), 'other', {}
      if ARGV[5] == epoch then
        local fits = cursor == floor or cursor > floor and cursor <= seq and purge_at(cursor) == ARGV[7]
        state = fits and 'known' or 'lost'
        if ARGV[9] == '1' and not mature then redis.call('HSET', ctl, 'mature', 1) end
      elseif floor > 0 then state = 'lost' end
      if redis.call('ZADD', acks, 'NX', 0, node) == 1 then redis.call('HINCRBY', ctl, 'nodes', 1) end
      local count = redis.call('HINCRBY', seen, node, 1)
      if state == 'known' and redis.call('ZADD', acks, 'GT', 'CH', cursor, node) == 1 then wake() end
      if state ~= 'lost' then
        local from = state == 'known' and '(' .. cursor .. '-0' or '-'
        entries = redis.call('XRANGE', log, from, '+', 'COUNT', ARGV[8])
      end
      local time = redis.call('TIME')
      redis.call('HSET', ctl, 'at:' .. node, time[1] .. ' ' .. time[2] .. ' ' .. ARGV[10])
      local low = redis.call('ZRANGE', acks, 0, 0, 'WITHSCORES')[2]
      return {epoch, seq, floor, state, time, entries, count, mature and 1 or 0, low}
      """)

  /// Posts a purge. 4: its ID; 5: the removal; 6: the maximum number of kept entries.
  static let post = Script(
    head + """
      seq = redis.call('HINCRBY', ctl, 'seq', 1)
      redis.call('XADD', log, seq .. '-0', 'p', ARGV[4], 'r', ARGV[5])
      local most = tonumber(ARGV[6])
      if seq - floor > most then
        redis.call('XTRIM', log, 'MAXLEN', '=', most)
        redis.call('HSET', ctl, 'floor', seq - most)
      end
      if nodes > 0 then redis.call('ZADD', wait, seq, ARGV[4]) end
      return {epoch, seq, mature and 1 or 0, redis.call('HGETALL', seen)}
      """)

  /// Checks whether a posted purge is complete. 4: its ID; 5: its epoch; 6: its seq; 7: '1' if W has passed since the
  /// post was answered; then the pairs that POST replied.
  static let finish = Script(
    head + """
      local n = tonumber(ARGV[6])
      if ARGV[5] ~= epoch or n > seq or n > floor and purge_at(n) ~= ARGV[4] then return {'lost', 0, {}} end
      if ARGV[7] == '1' then
        sweep(8)
        redis.call('HSET', ctl, 'mature', 1)
        mature = true
      end
      local pending = redis.call('ZRANGEBYSCORE', acks, '-inf', '(' .. n)
      if #pending == 0 or ARGV[7] == '1' then redis.call('ZREM', wait, ARGV[4]) end
      return {'posted', mature and 1 or 0, pending}
      """)

  /// Unregisters a node whose lease has ended on its machine already. 4: node.
  static let leave = Script(
    head + """
      drop(ARGV[4])
      wake()
      return 1
      """)

  /// Unregisters nodes that have not renewed for longer than W. From 4: pairs of a node and its count of renewals.
  static let sweep = Script(
    head + """
      sweep(4)
      return redis.call('HGETALL', seen)
      """)

  /// Reads the state of the fleet, and changes nothing. Keys: `ctl log acks wait`.
  static let status = Script(
    permissionCheck(
      """
      {KEYS[1], 0, 'hgetall'}, {KEYS[2], 0, 'xlen'}, {KEYS[3], 2, 'zrange'}, {KEYS[4], 2, 'zrange'},
      {false, 0, 'time', 'info'}
      """) + """
        return {
          redis.call('HGETALL', KEYS[1]), redis.call('XLEN', KEYS[2]), redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'),
          redis.call('ZRANGE', KEYS[4], 0, -1, 'WITHSCORES'), redis.call('TIME'), \(replicationID)}
        """)
}
