import sys, time, structlog, logging, os, gc
from tests.simulation.world import World
from tests.simulation.loop import current
W=None
def show(logger, name, d):
    p=current()
    print(f"   {W.loop.now:9.3f} {p.name if p else '-':12} {d.pop('event')} {d}")
    raise structlog.DropEvent
if os.environ.get("V"):
    structlog.configure(processors=[show])
else:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
def main():
    global W
    gc.collect(); gc.freeze(); gc.disable()
    first = int(sys.argv[1]); many=int(sys.argv[2]) if len(sys.argv)>2 else 1
    for seed in range(first, first+many):
        t=time.process_time()
        w=W=World(seed)
        if os.environ.get("V"):
            n=w.broker.note
            def note(*what, n=n, w=w):
                n(*what)
                if what[0] not in ("append",): print(f"   {w.loop.now:9.3f} * {what}"[:300])
            w.broker.note=note
            print(w.plan); print(*w.faults, sep="\n")
        o=w.run()
        print(seed, len(o.faults), f"{o.seconds:.0f}s", o.steps, o.digest[:12], f"cpu {time.process_time()-t:.2f}", [v[:300] for v in o.violations[:3]], flush=True)
    return w,o
if __name__=="__main__":
    main()
