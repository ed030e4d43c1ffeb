/* Long loops: other threads of Python run meanwhile, and the handlers of signals now and then. */

#define PERIOD 20 /* milliseconds between two looks of a loop */

static __thread void *away; /* brings this thread back to Python, while it lets others run */
static __thread long worked; /* elements since the last look */
static __thread int broken;  /* whether a signal's handler raised between the steps of an element, or rows */

/* Let other threads of Python run during a long loop; return whether this one has to come back after it. */
SHARED int let_others(long n)
{
    if (n < LONG)
        return 0;
    worked += n;
    if (away)
        return 0;
    away = PyEval_SaveThread();
    return 1;
}

/* Return where the elements are counted that this thread has been through since the last look. */
SHARED long *worked_here(void)
{
    return &worked;
}

SHARED void come_back(void)
{
    if (away)
        PyEval_RestoreThread(away);
    away = 0;
}

/* Let the handlers of signals run; return 0, back in Python, if one raised. */
SHARED int breathe(void)
{
    void *const others = away;
    come_back();
    worked = 0;
    if (broken || PyErr_CheckSignals())
        return broken = 0;
    away = others ? PyEval_SaveThread() : 0;
    return 1;
}

SHARED long milliseconds(void)
{
    long time[2];
    (void)clock_gettime(6, time); /* the coarse one, for which the system is not called */
    return time[0] * 1000 + time[1] / 1000000;
}

/* Read the clock, and let others run if it is time, also after that; return 0 if a signal's handler raised. */
SHARED int look(Watch *watch)
{
    const long now = milliseconds(), passed = now - watch->last;
    if (passed < PERIOD) {
        watch->every *= watch->every < 1 << 20 ? 2 : 1;
        watch->left = watch->every;
        return 1;
    }
    if (passed > 2 * PERIOD)
        watch->every = watch->every * PERIOD / passed + 1;
    watch->left = watch->every;
    watch->last = now;
    if (!away)
        away = PyEval_SaveThread();
    return breathe();
}

/* Return whether an element takes its next steps, or a walk its next row: not if a handler raised, which `breathe`
   will say again. */
SHARED int goes_on(void)
{
    static __thread Watch watch;
    if (broken || watch.left-- > 0)
        return !broken;
    const int back = !away;
    broken = !look(&watch);
    if (watch.every > 64) /* times at most, as the next element's steps may take longer */
        watch.every = watch.left = 64;
    if (back)
        come_back();
    if (broken)
        worked = BREATH + 1;
    return !broken;
}
