/* The protocol of a fleet for one cached object, as a model for Spin 6.5.
 *
 * The object has the versions 0 to V at the origin. A purge is called after the origin has the next version. When the
 * purge has returned, no request that begins later may get an older version without asking the origin. `least` is the
 * lowest version that is permitted. The assertions in Node() compare with it.
 *
 * Every step of a node, of Redis, of the process that purges, and of time can come between any two others. A node that
 * takes no step is suspended or slow. Time is counted in ticks. A node's clock can lose a tick in a lease, and the clock
 * of one that waits can gain a tick.
 *
 * Only the node READER has requests, a store and a lease. A wrong response is one of some node, and what the other nodes
 * store for themselves cannot reach it. The others acknowledge, fetch, and store shared objects.
 *
 * Options: N nodes, V purges, L ticks of a lease, FAULTS of Redis, CRASHES of processes; TRIM lets the log be trimmed,
 * LATE lets Redis run a renewal that its sender has abandoned, SHARED adds shared objects, CLAIM lets nodes tell Redis
 * that an epoch is mature, and LOCAL makes the purges those of the reader's machine, which hold there at once. KEPT
 * makes them removals of the node KEEPER, without a caller that waits: the keeper posts them, again in each epoch, until
 * every node obeys, and then forgets them. A removal that was forgotten permits no older version. RELIABLE leaves out
 * lost renewals, machines that leave, and clocks whose rates differ, so that there are fewer states. Each NO_... takes a
 * rule out; then the model must find a wrong response. */
#ifndef N
#define N 2
#endif
#ifndef V
#define V 1
#endif
#ifndef L
#define L 2
#endif
#if defined(NO_MARGIN) || defined(RELIABLE)
#define W L
#else
#define W (L+2)
#endif
#ifndef FAULTS
#define FAULTS 0
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#define POSTS (V+FAULTS+1)   /* the maximum length of the log: purges can be posted again */
#define EPOCHS (FAULTS+2)
#define NONE 15
#ifdef RELIABLE
#define DRIFTS false
#else
#define DRIFTS true
#endif
#define READER (N-1)
#define KEEPER 0

/* ---- The origin, and the property ---- */
byte version = 0;
byte least = 0;

/* ---- Redis ---- */
byte rEpoch, rRun, rSeq, rFloor;     /* epoch 0: the keys are missing */
bit rMature;                         /* no lease of an earlier epoch can be valid */
byte rLog[POSTS+1];                  /* the version that each purge is for */
bit registered[N]; byte acked[N];
bit renewed[N];                      /* since a purge was posted */
byte server = 1;                     /* another one after each restart */
byte epochs = 0;
#if FAULTS > 0
byte faults = 0;
#endif
#ifdef SHARED
byte oVersion = NONE; byte oEpoch, oSeq;   /* the shared object, and its tag */
#endif

/* ---- Nodes: the fleet file and the store ---- */
byte epoch[N]; byte cursor[N]; byte atCursor[N];   /* the position, and the purge at it */
byte stored[N];
byte leaseAge[N]; bit leaseSlow[N];  /* L: the lease is over */
#ifdef SHARED
byte annEpoch, annSeq;               /* the last purge of the reader whose removal may count in its store */
#endif
#ifdef LOCAL
byte unposted = 0;                   /* the removal of the reader's machine that its follower has not received */
#endif

#ifdef KEPT
byte kept = 0;                       /* the removal of the keeper that it has not forgotten */
bit received;                        /* by the keeper's follower */
byte kEpoch, kSeq;                   /* where it was in the log then */
byte kAge; bit kFast;                /* the time since then */
byte mKept; bit mObeyed; bit mOld;   /* in a reply: its number; whether all nodes have acknowledged it; W had passed */
#endif

/* ---- Followers ---- */
byte step[N];                        /* 0: idle. 1: a request is under way. 2: a reply. 3-5: applying. 6: extending */
bit abandoned[N];                    /* the sender of the request no longer waits */
byte mRun[N]; byte mEpoch[N]; byte mCursor[N]; byte mId[N]; bit mLost[N]; bit mNew[N]; bit mAny[N]; bit mOwn[N];
bit mClaim[N];
byte sentAge[N]; bit sentSlow[N];    /* since the renewal was sent */
#ifdef CLAIM
byte known[N]; byte knownAge[N]; bit knownFast[N];   /* the epoch that a node knows, and for how long */
#endif

/* ---- Fetches and requests ---- */
byte fetch[N]; byte fVersion[N]; bit fVoid[N];
byte request; byte floor;            /* `least` at the beginning of the request */
#ifdef SHARED
byte fEpoch[N]; byte fSeq[N];        /* the tag of a fetch */
byte gVersion, gEpoch, gSeq, gPosition; bit gVoid;   /* the shared object that a request has read */
bit put[N]; byte pVersion[N]; byte pEpoch[N]; byte pSeq[N];
#endif
#ifdef NO_LEASE_BEFORE
byte seen;
#endif
#if CRASHES > 0
byte crashes = 0;
#endif
#ifdef LATE
bit late[N]; byte lRun[N]; byte lEpoch[N]; byte lCursor[N]; byte lId[N]; bit lClaim[N];
#endif

/* ---- The purge ---- */
byte purge = 0;                      /* 0: none. 1: posting. 2: waiting. 3: about to remove on its machine */
byte qVersion, qEpoch, qSeq; bit qMature;
byte waited; bit waitFast;

/* The beginning of each script. */
inline ensureEpoch() {
  if
#ifdef NO_RUN
  :: rEpoch == 0 ->
#else
  :: rEpoch == 0 || rRun != server ->
#endif
     epochs++; rEpoch = epochs; rRun = server; rSeq = 0; rFloor = 0; rMature = (epochs == 1);
     for (k : 0 .. POSTS) { rLog[k] = 0 }
     for (k : 0 .. N-1) { registered[k] = 0; acked[k] = 0; renewed[k] = 0 }
  :: else
  fi
}

/* RENEW, with its reply. */
inline renew(i, e, c, id, claim, replies) {
  ensureEpoch();
  if
#ifdef NO_FLOOR
  :: e == rEpoch && c <= rSeq && (c <= rFloor || rLog[c] == id) -> lost = 0; fresh = 0
#else
  :: e == rEpoch && (c == rFloor || c > rFloor && c <= rSeq && rLog[c] == id) -> lost = 0; fresh = 0
#endif
  :: else -> fresh = (e != rEpoch); lost = (e == rEpoch || rFloor > 0)
  fi;
#ifdef CLAIM
  if :: claim && e == rEpoch -> rMature = 1 :: else fi;
#endif
  if :: !registered[i] -> registered[i] = 1; acked[i] = 0 :: else fi;
  if :: !lost && !fresh && c > acked[i] -> acked[i] = c :: else fi;
#ifdef NO_ACK_AFTER
  acked[i] = rSeq;
#endif
  renewed[i] = 1;
  if
  :: replies ->
     step[i] = 2; mAny[i] = (rSeq > rFloor && (fresh || rSeq > c));
#ifdef LOCAL
     mOwn[i] = 0;
     for (k : 1 .. POSTS) {
       if :: k <= rSeq && k > rFloor && (fresh || k > c) && unposted > 0 && rLog[k] == unposted -> mOwn[i] = 1 :: else fi
     }
#endif
#ifdef KEPT
     if
     :: i == KEEPER ->
        mKept = 0;
        for (k : 1 .. POSTS) {
          if
          :: mKept == 0 && !lost && k <= rSeq && k > rFloor && (fresh || k > c) && kept > 0 && rLog[k] == kept ->
             mKept = k
          :: else
          fi }
#ifdef NO_KEPT_YOUNG
        mObeyed = 1;
#else
        mObeyed = rMature;
#endif
        for (k : 0 .. N-1) { if :: registered[k] && acked[k] < kSeq -> mObeyed = 0 :: else fi }
     :: else
     fi;
#endif
     mEpoch[i] = rEpoch; mCursor[i] = rSeq; mId[i] = rLog[rSeq]; mLost[i] = lost; mNew[i] = fresh
  :: else
  fi;
  lost = 0; fresh = 0; k = 0
}

inline post(v) {
  ensureEpoch();
  rSeq++; rLog[rSeq] = v;
  for (k : 0 .. N-1) { renewed[k] = 0 }
  k = 0
}

#ifdef KEPT
inline forget() {
  if :: least < kept -> least = kept :: else fi;
  kept = 0; received = 0; kEpoch = 0; kSeq = 0; kAge = 0; kFast = 0
}

#ifdef NO_KEPT_FROM_SENDING
#define HAS_WAITED (kAge >= W)
#elif defined(NO_KEPT_WAIT)
#define HAS_WAITED true
#else
#define HAS_WAITED mOld
#endif
#ifdef NO_KEPT_EPOCH
#define IS_SAME_EPOCH true
#else
#define IS_SAME_EPOCH (kEpoch == mEpoch[KEEPER])
#endif
/* The keeper's follower has a reply. It may have gone on without the entries of another epoch. */
inline settle() {
  if
  :: kept > 0 && received && IS_SAME_EPOCH && (mObeyed || HAS_WAITED) -> forget()
  :: kept > 0 && received && IS_SAME_EPOCH && !(mObeyed || HAS_WAITED) -> skip
  :: kept > 0 && received && !IS_SAME_EPOCH -> received = 0; kEpoch = 0; kSeq = 0; kAge = 0; kFast = 0
  :: kept > 0 && !received && mKept > 0 ->
#ifdef NO_KEPT
     forget()
#else
     received = 1; kEpoch = mEpoch[KEEPER]; kSeq = mKept; kAge = 0; kFast = 0
#endif
  :: kept > 0 && !received && (mKept == 0 || mNew[KEEPER]) -> skip
  :: kept == 0 -> skip
  fi
}
#endif

/* A removal counts in the reader's store. */
inline remove() {
  stored[READER] = NONE;
#ifndef NO_VOID_FETCH
  if :: fetch[READER] > 0 -> fVoid[READER] = 1 :: else fi;
#endif
#ifdef SHARED
  gVoid = (request > 1);
#endif
}

inline clearReply(i) {
  mRun[i] = 0; mEpoch[i] = 0; mCursor[i] = 0; mId[i] = 0; mLost[i] = 0; mNew[i] = 0; mAny[i] = 0; mOwn[i] = 0;
  mClaim[i] = 0; abandoned[i] = 0;
#ifdef KEPT
  if :: i == KEEPER -> mKept = 0; mObeyed = 0; mOld = 0 :: else fi
#endif
}

inline drop(i) { step[i] = 0; sentAge[i] = 0; sentSlow[i] = 0; clearReply(i) }

inline extend(i) {
#ifdef NO_LEASE_FROM_SENDING
  leaseAge[i] = 0; leaseSlow[i] = 0;
#else
  if :: sentAge[i] < leaseAge[i] -> leaseAge[i] = sentAge[i]; leaseSlow[i] = sentSlow[i] :: else fi;
#endif
  sentAge[i] = 0; sentSlow[i] = 0
}

/* A node knows an epoch from the reply on. The renewal can have been under way for any time. */
#ifdef NO_CLAIM_FROM_REPLY
#define KNOWN_AGE W
#else
#define KNOWN_AGE 0
#endif
inline noteEpoch(i) {
#ifdef CLAIM
  if :: known[i] != mEpoch[i] -> known[i] = mEpoch[i]; knownAge[i] = KNOWN_AGE; knownFast[i] = 0 :: else fi
#else
  skip
#endif
}

/* A fleet file begins another epoch. */
inline begin(i, c, id) {
  epoch[i] = mEpoch[i]; cursor[i] = c; atCursor[i] = id;
#ifdef SHARED
  annEpoch = mEpoch[i]; annSeq = c;
#endif
}

inline advance(i) { cursor[i] = mCursor[i]; atCursor[i] = mId[i] }

inline endRequest() {
  request = 0; floor = 0;
#ifdef SHARED
  gVersion = 0; gEpoch = 0; gSeq = 0; gPosition = 0; gVoid = 0;
#endif
}

#ifdef SHARED
#if defined(LOCAL) && !defined(NO_UNPOSTED)
#define IS_POSTED unposted == 0
#else
#define IS_POSTED true
#endif
/* The last purge of an epoch whose removal may count in the store. */
#ifdef NO_ANNOUNCEMENT
#define ANNOUNCED cursor[READER]
#else
#define ANNOUNCED (annEpoch == epoch[READER] && annSeq > cursor[READER] -> annSeq : cursor[READER])
#endif
#endif

proctype Node(byte i) {
  byte k; bit lost; bit fresh;
  do
  /* ---- The follower ---- */
  :: d_step { step[i] == 0 ->
       step[i] = 1; mRun[i] = server; mEpoch[i] = epoch[i]; mCursor[i] = cursor[i]; mId[i] = atCursor[i];
#ifdef CLAIM
       mClaim[i] = (epoch[i] > 0 && known[i] == epoch[i] && knownAge[i] >= W);
#endif
#ifdef KEPT
       if :: i == KEEPER -> mOld = (received && kAge >= W) :: else fi;
#endif
       sentAge[i] = 0; sentSlow[i] = 0 }
  :: d_step { step[i] == 1 && mRun[i] == server && epochs < EPOCHS ->
       renew(i, mEpoch[i], mCursor[i], mId[i], mClaim[i], !abandoned[i]);
       if :: step[i] == 1 -> drop(i) :: else fi }
#ifndef RELIABLE
  :: d_step { (step[i] == 1 || step[i] == 2) -> drop(i) }
#endif
#ifdef LATE
  :: d_step { step[i] == 1 && !late[i] ->
       late[i] = 1; lRun[i] = mRun[i]; lEpoch[i] = mEpoch[i]; lCursor[i] = mCursor[i]; lId[i] = mId[i];
       lClaim[i] = mClaim[i]; drop(i) }
  :: d_step { late[i] && epochs < EPOCHS ->
       if :: lRun[i] == server -> renew(i, lEpoch[i], lCursor[i], lId[i], lClaim[i], 0) :: else fi;
       late[i] = 0; lRun[i] = 0; lEpoch[i] = 0; lCursor[i] = 0; lId[i] = 0; lClaim[i] = 0 }
#endif
  /* The reply of another node than the reader is applied in one step. */
  :: d_step { i != READER && step[i] == 2 ->
       noteEpoch(i);
#ifdef KEPT
       if :: i == KEEPER -> settle() :: else fi;
#endif
       epoch[i] = mEpoch[i]; advance(i); drop(i) }
#ifdef NO_CUT
  :: d_step { i == READER && step[i] == 2 && leaseAge[i] >= L && !abandoned[i] -> extend(i); abandoned[i] = 1 }
#endif
  /* The reader's: the state in which it is decides how. */
  :: d_step { i == READER && step[i] == 2 ->
       noteEpoch(i);
       if
#ifdef NO_DISTRUST
       :: mLost[i] || mNew[i] && leaseAge[i] >= L -> begin(i, mCursor[i], mId[i]); step[i] = 6
#else
       :: mLost[i] || mNew[i] && leaseAge[i] >= L -> leaseAge[i] = L; leaseSlow[i] = 0; step[i] = 5
#endif
#ifdef NO_EPOCH_FROM_START
       :: !mLost[i] && mNew[i] && leaseAge[i] < L -> begin(i, mCursor[i], mId[i]); step[i] = 6
#else
       :: !mLost[i] && mNew[i] && leaseAge[i] < L -> begin(i, 0, 0); step[i] = 3
#endif
       :: !mLost[i] && !mNew[i] -> step[i] = 3
       fi }
  /* Known purges: announced, then removed, then the position. */
  :: d_step { i == READER && step[i] == 3 ->
       if
       :: mAny[i] ->
#ifdef SHARED
          annEpoch = epoch[i]; annSeq = mCursor[i];
#endif
#ifdef NO_REMOVAL_FIRST
          advance(i);
#endif
          step[i] = 4
       :: else -> step[i] = 6
       fi }
  :: d_step { i == READER && step[i] == 4 -> remove(); step[i] = 7 }
  :: d_step { i == READER && step[i] == 7 ->
       advance(i); step[i] = 6;
#ifdef LOCAL
       if :: mOwn[i] -> unposted = 0 :: else fi;
#endif
     }
  /* Purges may be unknown: everything is suspect, then the position. */
  :: d_step { i == READER && step[i] == 5 -> remove(); step[i] = 8 }
  :: d_step { i == READER && step[i] == 8 -> begin(i, mCursor[i], mId[i]); step[i] = 6 }
  :: d_step { i == READER && step[i] == 6 -> extend(i); drop(i) }
  /* Leaving: the lease first. */
#ifdef NO_LEASE_END
  :: d_step { step[i] == 0 && registered[i] -> registered[i] = 0; acked[i] = 0 }
#elif !defined(RELIABLE)
  :: d_step { step[i] == 0 && registered[i] && leaseAge[i] >= L -> registered[i] = 0; acked[i] = 0; renewed[i] = 0 }
  :: d_step { leaseAge[i] < L -> leaseAge[i] = L; leaseSlow[i] = 0 }
#endif
#ifdef LOCAL
  /* The follower posts what no other process does. */
  :: d_step { i == READER && unposted > 0 && purge == 0 && rSeq < POSTS && epochs < EPOCHS -> post(unposted) }
#endif
#if CRASHES > 0
  :: d_step { crashes < CRASHES -> crashes++;
       fetch[i] = 0; fVersion[i] = 0; fVoid[i] = 0;
       if :: i == READER -> endRequest() :: else fi;
#ifdef SHARED
       fEpoch[i] = 0; fSeq[i] = 0;
#endif
#ifdef CLAIM
       known[i] = 0; knownAge[i] = 0; knownFast[i] = 0;
#endif
       if :: step[i] == 1 -> abandoned[i] = 1 :: step[i] > 1 -> drop(i) :: else fi }
#endif

  /* ---- Fetches. A node without a lease fetches, too ---- */
#ifdef SHARED
  :: d_step { fetch[i] == 0 -> fetch[i] = 1; fVoid[i] = 0; fEpoch[i] = epoch[i]; fSeq[i] = cursor[i] }
#else
  :: d_step { i == READER && fetch[i] == 0 -> fetch[i] = 1; fVoid[i] = 0 }
#endif
  :: d_step { fetch[i] == 1 -> fetch[i] = 2; fVersion[i] = version }
  :: d_step { fetch[i] == 2 ->
       if :: i == READER && !fVoid[i] -> stored[i] = fVersion[i] :: else fi;
#ifdef SHARED
#ifdef NO_EARLY_TAG
       fEpoch[i] = epoch[i]; fSeq[i] = cursor[i];
#endif
       if
       :: !put[i] && fEpoch[i] > 0 -> put[i] = 1; pVersion[i] = fVersion[i]; pEpoch[i] = fEpoch[i]; pSeq[i] = fSeq[i]
       :: else
       fi;
       fEpoch[i] = 0; fSeq[i] = 0;
#endif
       fetch[i] = 0; fVersion[i] = 0; fVoid[i] = 0 }

  /* ---- Requests: the lease, then what is stored ---- */
#ifdef NO_LEASE_BEFORE
  /* The store first: what it had is used if the lease is valid afterwards. */
  :: d_step { i == READER && request == 0 && stored[i] != NONE -> request = 1; floor = least; seen = stored[i] }
  :: d_step { i == READER && request == 1 ->
       if :: leaseAge[i] < L -> assert(seen >= floor) :: else fi; seen = 0; endRequest() }
#else
#ifdef NO_LEASE
  :: d_step { i == READER && request == 0 -> request = 1; floor = least }
#else
  :: d_step { i == READER && request == 0 && leaseAge[i] < L -> request = 1; floor = least }
#endif
  :: d_step { i == READER && request == 1 && stored[i] != NONE -> assert(stored[i] >= floor); endRequest() }
#endif
  :: d_step { i == READER && request > 0 -> endRequest() }
#ifdef NO_LATER_FETCH
  :: d_step { i == READER && request == 0 && fetch[i] == 2 -> assert(fVersion[i] >= least) }
#else
  :: d_step { i == READER && request == 1 && fetch[i] == 2 && !fVoid[i] -> assert(fVersion[i] >= floor); endRequest() }
#endif
#ifdef SHARED
  /* The removal number of the store, then the unposted removals, the lease and the position, then the object. */
  :: d_step { i == READER && request == 1 && stored[i] == NONE -> request = 2; gVoid = 0 }
  :: d_step { i == READER && request == 2 && leaseAge[i] < L && IS_POSTED -> request = 3; gPosition = epoch[i] }
  :: d_step { i == READER && request == 3 && oVersion != NONE ->
       request = 4; gVersion = oVersion; gEpoch = oEpoch; gSeq = oSeq }
  :: d_step { i == READER && request == 4 ->
       if
#ifdef NO_OBJECT_EPOCH
       :: gSeq >= ANNOUNCED ->
#elif defined(NO_OBJECT_SEQ)
       :: gEpoch == gPosition ->
#else
       :: gEpoch == gPosition && epoch[i] == gPosition && gSeq >= ANNOUNCED ->
#endif
          assert(gVersion >= floor);
          if :: !gVoid -> stored[i] = gVersion :: else fi
       :: else
       fi;
       endRequest() }
  :: d_step { put[i] ->
       if
       :: oVersion != NONE && oEpoch == pEpoch[i] && oSeq > pSeq[i] -> skip      /* a newer one is stored */
       :: else -> oVersion = pVersion[i]; oEpoch = pEpoch[i]; oSeq = pSeq[i]
       fi;
       put[i] = 0; pVersion[i] = 0; pEpoch[i] = 0; pSeq[i] = 0 }
  :: d_step { put[i] -> put[i] = 0; pVersion[i] = 0; pEpoch[i] = 0; pSeq[i] = 0 }
#endif
  od
}

inline endPurge() { purge = 0; waited = 0; waitFast = 0; qVersion = 0; qEpoch = 0; qSeq = 0; qMature = 0 }

proctype Purger() {
  byte k; bit pending;
  do
#ifdef LOCAL
  /* Announced as unposted, then removed on this machine, where it holds from then on; then posted. */
  :: d_step { purge == 0 && unposted == 0 && version < V -> version++; qVersion = version; unposted = version; purge = 3 }
  :: d_step { purge == 3 -> remove(); least = qVersion; purge = 1 }
#elif defined(KEPT)
  /* Announced to all processes of the keeper's machine, of which any can post it. */
  :: d_step { kept == 0 && version < V -> version++; kept = version }
  :: d_step { kept > 0 && !received && rSeq < POSTS && epochs < EPOCHS -> post(kept) }
#else
  :: d_step { purge == 0 && version < V -> version++; qVersion = version; purge = 1 }
#endif
  :: d_step { purge > 0 -> endPurge() }
  :: d_step { purge == 1 && rSeq < POSTS && epochs < EPOCHS ->
       post(qVersion); qEpoch = rEpoch; qSeq = rSeq; qMature = rMature; purge = 2;
#ifndef NO_WAIT_FROM_REPLY
       waited = 0; waitFast = 0;
#endif
     }
  :: d_step { purge == 2 && epochs < EPOCHS ->
#ifdef NO_POST_CHECK
       if
       :: (rEpoch == 0 || rRun != server || rEpoch != qEpoch) ->
          if :: waited >= W -> least = qVersion; endPurge() :: else fi
#else
       ensureEpoch();
       if
       :: rEpoch != qEpoch || rSeq < qSeq || qSeq > rFloor && rLog[qSeq] != qVersion ->
          purge = 1; waited = 0; waitFast = 0; qEpoch = 0; qSeq = 0; qMature = 0
#endif
       :: else ->
          for (k : 0 .. N-1) {
            if
#ifdef NO_RENEWED_STAYS
            :: registered[k] && waited >= W && acked[k] < qSeq -> registered[k] = 0; acked[k] = 0
#else
            :: registered[k] && waited >= W && !renewed[k] -> registered[k] = 0; acked[k] = 0
#endif
            :: registered[k] && waited < W && acked[k] < qSeq -> pending = 1
            :: else
            fi }
          if :: waited >= W -> rMature = 1 :: else fi;
          if
#ifdef NO_YOUNG_WAIT
          :: !pending ->
#else
          :: !pending && (rMature || waited >= W) ->
#endif
             least = qVersion; endPurge()
          :: else
          fi
       fi;
       pending = 0; k = 0 }
  od
}

#ifdef NO_WAIT_FROM_REPLY
#define WAITS (purge > 0)
#else
#define WAITS (purge == 2)
#endif

proctype Time() {
  byte k;
  do
  :: atomic {
       if
       :: leaseAge[READER] < L -> leaseAge[READER]++
       :: DRIFTS && leaseAge[READER] < L && !leaseSlow[READER] -> leaseSlow[READER] = 1
       :: leaseAge[READER] >= L
       fi;
       if :: leaseAge[READER] >= L -> leaseSlow[READER] = 0 :: else fi;
       if
       :: step[READER] > 0 && sentAge[READER] < L -> sentAge[READER]++
       :: DRIFTS && step[READER] > 0 && sentAge[READER] < L && !sentSlow[READER] -> sentSlow[READER] = 1
       :: step[READER] == 0 || sentAge[READER] >= L
       fi;
       if :: sentAge[READER] >= L -> sentSlow[READER] = 0 :: else fi;
       if
       :: WAITS && waited < W -> waited++
       :: DRIFTS && WAITS && waited < W && !waitFast -> waited = waited + 2; waitFast = 1
       :: !WAITS || waited >= W
       fi;
       if :: waited > W -> waited = W :: else fi;
#ifdef KEPT
       if
       :: received && kAge < W -> kAge++
       :: DRIFTS && received && kAge < W && !kFast -> kAge = kAge + 2; kFast = 1
       :: !received || kAge >= W
       fi;
       if :: kAge > W -> kAge = W :: else fi;
#endif
#ifdef CLAIM
       k = 0;
       do
       :: k < N ->
          if
          :: known[k] > 0 && knownAge[k] < W -> knownAge[k]++
          :: DRIFTS && known[k] > 0 && knownAge[k] < W && !knownFast[k] ->
             knownAge[k] = knownAge[k] + 2; knownFast[k] = 1
          :: known[k] == 0 || knownAge[k] >= W
          fi;
          if :: knownAge[k] > W -> knownAge[k] = W :: else fi;
          k++
       :: else -> break
       od;
       k = 0
#endif
     }
  od
}

#if defined(TRIM) || FAULTS > 0 || defined(NO_REGISTRY_CHECK)
inline lose(to, keepsNodes) {
  rSeq = to;
  for (k : 0 .. POSTS) { if :: k > rSeq -> rLog[k] = 0 :: else fi }
  if :: rFloor > rSeq -> rFloor = rSeq :: else fi;
  for (k : 0 .. N-1) {
    if :: !keepsNodes -> registered[k] = 0; acked[k] = 0; renewed[k] = 0 :: else fi;
    if :: acked[k] > rSeq -> acked[k] = rSeq :: else fi }
  k = 0
}

proctype Faults() {
  byte k;
  do
#ifdef TRIM
  :: d_step { rFloor < rSeq -> rFloor++ }
#endif
#ifdef NO_REGISTRY_CHECK
  /* The registry is evicted, which the script does not notice. */
  :: d_step { registered[0] -> for (k : 0 .. N-1) { registered[k] = 0; acked[k] = 0; renewed[k] = 0 }
       k = 0 }
#endif
#if FAULTS > 0
  /* A restart with an old dump, or a replica that lagged: entries are lost, maybe also nodes. */
  :: d_step { faults < FAULTS && rSeq > 0 -> faults++; server++; lose(rSeq - 1, 1) }
  :: d_step { faults < FAULTS && rSeq > 0 -> faults++; server++; lose(rSeq - 1, 0) }
  :: d_step { faults < FAULTS && rSeq > 1 -> faults++; server++; lose(rSeq - 2, 0) }
  :: d_step { faults < FAULTS && rEpoch > 0 -> faults++; server++; lose(rSeq, 0) }
  /* A restart that loses nothing. */
  :: d_step { faults < FAULTS -> faults++; server++ }
  /* FLUSHALL, or a control key is gone. */
  :: d_step { faults < FAULTS -> faults++; lose(0, 0); rEpoch = 0; rRun = 0; rMature = 0;
#ifdef SHARED
       oVersion = NONE; oEpoch = 0; oSeq = 0;
#endif
     }
#endif
  od
}
#endif

init {
  byte k;
  d_step { for (k : 0 .. N-1) { stored[k] = NONE; leaseAge[k] = L }
    k = 0 }
  atomic {
    k = 0;
    do :: k < N -> run Node(k); k++ :: else -> break od;
    k = 0;
    run Purger(); run Time();
#if defined(TRIM) || FAULTS > 0 || defined(NO_REGISTRY_CHECK)
    run Faults()
#endif
  }
}
